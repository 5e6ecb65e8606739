"""Requests of the naive engine from a trace."""

from collections.abc import Sequence
from itertools import count

import numpy as np
from numpy.typing import NDArray

from sim.engine.config import SchedulerConfig
from sim.engine.content import output_id, private_prompt_id
from sim.engine.front_door import rejections
from sim.workload.trace import Trace
from tests.reference.content import BlockKeys, Piece, cut, num_tokens, pieces, tokens_of
from tests.reference.modes import UNSCRIPTED, Script, Speculation
from tests.reference.request import Request


def make_requests(
    trace: Trace,
    config: SchedulerConfig,
    scripts: Sequence[Script] | None = None,
    *,
    capacity_too: bool = True,
    speculation: Speculation | None = None,
    interned: dict[tuple[object, ...], int] | None = None,
) -> list[Request]:
    """One request a row, in trace order, its output capped by max_model_len; what can never run has its reason.

    Those for further answers are numbered behind them; what they answer nobody else can know. Keys are those of all requests with the same `interned`.
    """
    max_tokens, rejected = _let_in(trace, config, capacity_too=capacity_too)
    interned = {} if interned is None else interned
    num_ahead = speculation.hash_lookahead if speculation else 0
    contents = _contents(trace, _answers(max_tokens, rejected))
    given = scripts or [UNSCRIPTED] * len(trace)
    adapters = _adapters(trace)
    clients = trace.lora_name or trace.session_id or [""] * len(trace)
    requests = [
        Request(
            index=index,
            request_id=request_id,
            arrival_s=float(trace.arrival_s[index]),
            num_prompt_tokens=int(trace.prompt_tokens[index]),
            max_tokens=int(max_tokens[index]),
            block_keys=BlockKeys(
                contents[index], config.block_size, interned, lora=adapters[index], num_ahead=num_ahead
            ),
            script=given[index],
            lora=adapters[index],
            client=clients[index],
            priority=int(trace.priority[index]) if trace.priority is not None else 0,
            rejected=rejected.get(index),
        )
        for index, request_id in enumerate(trace.request_id)
    ]
    prompts, number = _prompts(trace, _answers(max_tokens, rejected)), count(len(trace))
    for request, n in zip(requests, [] if trace.n is None else trace.n.tolist(), strict=False):
        for answer in range(1, n):
            request.others.append(_other(request, answer, next(number), prompts[request.index]))
        if request.others:
            request.request_id = f"0_{request.request_id}"
    return requests


def _other(first: Request, answer: int, index: int, prompt: list[Piece]) -> Request:
    """That for another answer to the same prompt."""
    content = [*prompt, (output_id(index), 0, first.max_tokens)]
    return Request(
        index=index,
        request_id=f"{answer}_{first.request_id}",
        arrival_s=first.arrival_s,
        num_prompt_tokens=first.num_prompt_tokens,
        max_tokens=first.max_tokens,
        block_keys=first.block_keys.of(content),
        priority=first.priority,
        lora=first.lora,
        client=first.client,
        first=first,
    )


def answers(requests: Sequence[Request]) -> list[Request]:
    """A request for each answer: the first ones, and behind these all others."""
    return [*requests, *(other for request in requests for other in request.others)]


def _adapters(trace: Trace) -> list[int]:
    """The adapter of each request, numbered as they come first; the base model is 0."""
    names = list(trace.lora_name or [""] * len(trace))
    known = list(dict.fromkeys(["", *names]))
    return [known.index(name) for name in names]


def prompts_as_sent(trace: Trace, config: SchedulerConfig) -> list[list[Piece]]:
    """What each request's prompt is made of."""
    return _prompts(trace, _answers(*_let_in(trace, config)))


def _let_in(
    trace: Trace, config: SchedulerConfig, *, capacity_too: bool = True
) -> tuple[NDArray[np.int64], dict[int, str]]:
    """Each request's output at most, and why some can never run."""
    max_tokens = np.clip(trace.output_tokens, 0, np.maximum(0, config.max_model_len - trace.prompt_tokens))
    return max_tokens, rejections(trace, max_tokens, config, capacity_too=capacity_too)


def _answers(max_tokens: NDArray[np.int64], rejected: dict[int, str]) -> list[int]:
    return [0 if row in rejected else int(tokens) for row, tokens in enumerate(max_tokens)]


def _prompts(trace: Trace, answers: list[int]) -> list[list[Piece]]:
    return [pieces(trace.segments[row]) if trace.segments else _said(trace, answers, row) for row in range(len(trace))]


def _contents(trace: Trace, answers: list[int]) -> list[list[Piece]]:
    """What each request's prompt and answer are made of."""
    prompts = _prompts(trace, answers)
    following = {_previous(trace, row): row for row in range(len(trace))}
    return [
        prompt + _answer(prompt, row, answers[row], prompts[following[row]] if row in following else [])
        for row, prompt in enumerate(prompts)
    ]


def _previous(trace: Trace, row: int) -> int | None:
    """The turn before this one in its session."""
    sessions = trace.session_id
    return max((turn for turn in range(row) if sessions[turn] == sessions[row]), default=None) if sessions else None


def _said(trace: Trace, answers: list[int], row: int) -> list[Piece]:
    """A prompt of which nothing is known but its session: what was said before, and what is new."""
    prompt_tokens, previous = int(trace.prompt_tokens[row]), _previous(trace, row)
    if previous is None:
        return [(private_prompt_id(row), 0, prompt_tokens)]
    before = _said(trace, answers, previous)
    heard = cut([*before, (output_id(previous), 0, answers[previous])], 0, prompt_tokens)
    return [*heard, (private_prompt_id(row), 0, prompt_tokens - num_tokens(heard))]


def _answer(prompt: list[Piece], row: int, num_answered: int, following: list[Piece]) -> list[Piece]:
    """What the next prompt has in its place, if that begins with this one; what it does not have is the answer's own."""
    repeats = tokens_of(following)[: num_tokens(prompt)] == tokens_of(prompt) and bool(prompt)
    repeated = cut(following, num_tokens(prompt), num_tokens(prompt) + num_answered) if repeats else []
    first = num_tokens(repeated)
    return [*repeated, (output_id(row), first, num_answered - first)]


def let_in(requests: list[Request]) -> list[Request]:
    """Those that are not rejected."""
    return [request for request in requests if request.rejected is None]
