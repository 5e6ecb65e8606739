"""Requests from a trace, each with the keys of the blocks that it shares with others."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np

from sim.engine.answer_rows import AnswerRows
from sim.engine.columns import Ints
from sim.engine.config import SchedulerConfig
from sim.engine.content import shared_block_keys
from sim.engine.front_door import FrontDoor, answered
from sim.engine.keyed_blocks import KeyedBlocks
from sim.engine.request import Request
from sim.engine.spans import Span, Spans
from sim.workload.adapters import adapter_numbers
from sim.workload.conversations import session_numbers
from sim.workload.parallel_sampling import one_answer_each
from sim.workload.trace import Trace

ROWS_AT_ONCE = 256


class KeyShape(NamedTuple):
    """What the keys of requests depend on: how many tokens a block has, how many behind it its key covers too, and the number of KV groups."""

    block_size: int
    num_ahead: int
    num_groups: int

    @classmethod
    def of(cls, trace: Trace, config: SchedulerConfig, num_ahead: int) -> "KeyShape | None":
        """None where requests have no keys."""
        has_keys = (config.engine.enable_prefix_caching or config.engine.kv_offloading_size) and trace.says_contents
        return cls(config.block_size, num_ahead, len(config.kv_groups)) if has_keys else None


class SharedKeys:
    """The keys of a trace's requests in one shape; `num_keys` counts the block contents that requests share."""

    def __init__(self, trace: Trace, answers: Ints, shape: KeyShape | None) -> None:
        self._spans: Spans | None = None
        self.num_keys = 0
        if shape:
            self._spans, self.num_keys = shared_block_keys(trace, answers, shape.block_size, shape.num_ahead)
        self._no_passed = [0] * shape.num_groups if shape else []
        self._first_row = -1
        self._some: list[list[Span]] = []

    def of_rows(self, rows: slice) -> Iterable[list[Span]]:
        """What some rows of the trace share."""
        return repeat([]) if self._spans is None else self._spans[rows]

    def of_row(self, row: int) -> list[Span]:
        """That of one row, looked up together with that of its neighbours."""
        if self._spans is None:
            return []
        first = row - row % ROWS_AT_ONCE
        if first != self._first_row:
            self._first_row, self._some = first, self._spans[first : first + ROWS_AT_ONCE]
        return self._some[row - first].copy()

    def give(self, request: Request, spans: list[Span]) -> None:
        """Lets a request that has not begun share these blocks."""
        request.keyed = KeyedBlocks(spans, self._no_passed) if spans else None
        request.num_shared_blocks = spans[-1].end if spans else 0


class RequestSource:
    """A trace's requests in order of arrival, each made when it is asked for; those that can never run are left out.

    `configs` are those of the pools that have to do with them, by number; those `answering` serve them (all, unless given), each of which
    takes so many `slots_ahead` of a request's tokens, and has a `hash_lookahead` of so many tokens behind a block (none, unless given).
    `max_tokens` are the outputs, capped by max_model_len; `rejected` holds the reasons by row, `unable` by row the pools that
    cannot serve it where others can. Where requests have `other_keys` in each pool they come without, and get those of the
    pool that they are sent to from `fit`. A request for several answers comes as that for the first, and has `others`;
    `answer_rows` are None where there is none.
    """

    def __init__(
        self,
        trace: Trace,
        *configs: SchedulerConfig,
        answering: Sequence[int] = (),
        slots_ahead: Sequence[int] = (),
        hash_lookahead: Sequence[int] = (),
        capacity_too: bool = True,
    ) -> None:
        self.trace = trace
        doors = {number: configs[number] for number in answering or range(len(configs))}
        door = FrontDoor.of(
            trace, doors, [slots_ahead[pool] for pool in doors] if slots_ahead else (), capacity_too=capacity_too
        )
        self.max_tokens, self.rejected, self.unable = door
        self._loras = None if trace.lora_name is None else adapter_numbers(trace.lora_name)
        tells_clients = any(config.engine.scheduling_policy == "fair_share" for config in configs)
        self._clients = session_numbers(trace.client) if tells_clients and trace.client else None
        self.answer_rows: AnswerRows | None = None
        prompts, answers = trace, door.answers
        if trace.n is not None and trace.n.max() > 1:
            self.answer_rows = AnswerRows(trace.n, trace.more_answers)
            prompts, answers = one_answer_each(trace), np.repeat(answers, trace.n)
        aheads = hash_lookahead or [0] * len(configs)
        shapes = [KeyShape.of(prompts, config, ahead) for config, ahead in zip(configs, aheads, strict=True)]
        keys = {shape: SharedKeys(prompts, answers, shape) for shape in dict.fromkeys(shapes)}
        self._keys = [keys[shape] for shape in shapes]
        self.other_keys = len(keys) > 1

    def num_keys(self, pool: int = 0) -> int:
        """Block contents that requests share in that pool."""
        return self._keys[pool].num_keys

    def answers(self) -> Ints:
        """Tokens that each request generates, none where it is rejected."""
        return answered(self.max_tokens, self.rejected)

    def fit(self, request: Request, pool: int) -> None:
        """Gives a request that has not begun its keys in that pool."""
        keys = self._keys[pool]
        keys.give(request, keys.of_row(self._place(request.index)))

    def others(self, request: Request) -> list[Request]:
        """The requests for its answers beyond the first, as vLLM's front end makes them of one that asks for several."""
        rows = range(0) if self.answer_rows is None else self.answer_rows.others(request.index)
        others = [further_answer(request, number, row) for number, row in enumerate(rows, 1)]
        for other in others if not self.other_keys else []:
            self.fit(other, 0)
        return others

    def row(self, answer: Request) -> int:
        """That of the trace."""
        return answer.index if self.answer_rows is None else int(self.answer_rows.request[answer.index])

    def _place(self, row: int) -> int:
        return row if self.answer_rows is None else self.answer_rows.place(row)

    def again(self, request: Request, num_returned: int) -> Request:
        """A fresh attempt at a request; the tokens that it has returned become a part of its prompt. `fit` gives it its keys."""
        num_prompt_tokens, max_tokens = request.num_prompt_tokens + num_returned, request.max_tokens - num_returned
        return of_the_same(request, request.index, request.request_id, num_prompt_tokens, max_tokens)

    def __len__(self) -> int:
        return len(self.trace)

    def __iter__(self) -> Iterator[Request]:
        for first in range(0, len(self.trace), ROWS_AT_ONCE):
            yield from self._requests(slice(first, first + ROWS_AT_ONCE))

    def _requests(self, rows: slice) -> Iterator[Request]:
        """The requests of some rows of the trace: plain numbers, for numpy's cost the engine dear."""
        trace, rejected, shared = self.trace, self.rejected, self._keys[0]
        ids, arrivals_s = trace.request_id[rows], trace.arrival_s[rows].tolist()
        prompts, outputs = trace.prompt_tokens[rows].tolist(), self.max_tokens[rows].tolist()
        numbers = range(rows.start, min(rows.stop, len(trace)))
        all_spans = repeat([]) if self.other_keys else self._spans_of(numbers)
        for row, spans, name, arrival_s, num_prompt_tokens, max_tokens in zip(
            numbers, all_spans, ids, arrivals_s, prompts, outputs, strict=False
        ):
            if row in rejected:
                continue
            if trace.n is not None and trace.n[row] > 1:
                name = answer_name(0, name)  # noqa: PLW2901 - that of the first
            request = Request(row, name, arrival_s, num_prompt_tokens, max_tokens)
            if trace.priority is not None:
                request.priority = int(trace.priority[row])
            if self._loras is not None:
                request.lora = int(self._loras[row])
            if self._clients is not None:
                request.client = int(self._clients[row])
            if spans:
                shared.give(request, spans)
            yield request

    def _spans_of(self, rows: range) -> Iterable[list[Span]]:
        """What requests in consecutive rows share."""
        shared = self._keys[0]
        if self.answer_rows is None:
            return shared.of_rows(slice(rows.start, rows.stop))
        return [shared.of_row(self._place(row)) for row in rows]


def of_the_same(other: Request, row: int, name: str, num_prompt_tokens: int, max_tokens: int) -> Request:
    """One more request of who sent the other, then and with the same claims."""
    found = Request(row, name, other.arrival_s, num_prompt_tokens, max_tokens, other.priority, other.lora)
    found.client = other.client
    return found


def further_answer(first: Request, number: int, row: int) -> Request:
    """The request for one more answer to what the first one asks, of that number behind it."""
    name = answer_name(number, first.request_id.partition("_")[2])
    return of_the_same(first, row, name, first.num_prompt_tokens, first.max_tokens)


def answer_name(number: int, request_id: str) -> str:
    """What vLLM's front end calls an answer, from 0 on, of a request that asks for several (ParentRequest of v1/engine/parallel_sampling.py)."""
    return f"{number}_{request_id}"
