"""Conversations as ShareGPT's: items with `conversations`, of whose turns each has a `value`, its text.

Filtered and sampled as `vllm bench serve --dataset-name sharegpt` does (vllm/benchmarks/datasets/sharegpt.py and utils.py at 237145ea):
conversations of two turns and more are shuffled with the seed, the first turn is the prompt and the second the answer, and pairs that
are too short or too long are pruned. Oversampling, for more requests than there are, is left out. Arrivals are as that
benchmark draws them, one request a second: another rate stretches them.
"""

import random
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from sim.errors import ConfigError
from sim.inputs import is_there
from sim.specs.huggingface import quiet_transformers
from sim.workload.arrivals import POISSON
from sim.workload.calls import Call, part_of, tokens_of
from sim.workload.columns import show
from sim.workload.table import Sheet
from sim.workload.trace import Trace
from sim.workload.trace_builder import Format, Part, assemble

MARK = "conversations"
COUNTS = ("num_tokens", "tokens")
MIN_TOKENS, MAX_PROMPT_TOKENS, MAX_TOTAL_TOKENS = 4, 1_024, 2_048  # is_valid_sequence
RATE = 1.0
NOTE = (
    "prompts and answers are the first two turns of conversations, sampled as vllm bench serve does; it has no times, and requests "
    "come as that draws them, one a second, unless a rate is asked for"
)


class Tokenizer(Protocol):
    def __call__(self, text: str) -> Any: ...


class Pair(NamedTuple):
    """A prompt and its answer, as turns."""

    place: int
    prompt: Mapping[str, Any]
    answer: Mapping[str, Any]


def local_tokenizer(folder: str | Path) -> Tokenizer:
    """That of a folder, never of a hub. Raises ConfigError where there is none."""
    path = Path(folder)
    if not is_there(path, Path.is_dir):
        raise ConfigError(f"`tokenizer` must be a folder with a model's tokenizer, got {folder}; download it first.")
    try:
        with quiet_transformers():
            from transformers import AutoTokenizer

            tokenizer: Tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, ImportError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(
            f"`tokenizer` must be a folder that transformers can load, got {folder} ({reason})."
        ) from None
    return tokenizer


def read_conversations(sheet: Sheet, limit: int | None, seed: int, tokenizer: str | Path | None) -> Trace:
    """As many requests as there are, or the first of the sample. Raises TraceError for what is no conversation."""
    loaded = None if tokenizer is None else local_tokenizer(tokenizer)
    parts = partial(_parts, limit, seed, loaded)
    return assemble(sheet, Format("sharegpt", (MARK,), parts, row_is_request=False, note=NOTE), limit)


def _parts(limit: int | None, seed: int, tokenizer: Tokenizer | None, sheet: Sheet) -> Iterator[Part]:
    pairs = list(_pairs(sheet))
    random.Random(seed).shuffle(pairs)  # noqa: S311 - as vllm bench serve shuffles
    calls: list[Call] = []
    for pair in pairs:
        if len(calls) == limit:
            break
        call = _call(sheet, pair, tokenizer)
        if call is None:
            sheet.leave_out(1, "too short or too long for vllm bench serve")
        else:
            calls.append(call)
    times = POISSON.times(len(calls), RATE, np.random.default_rng(seed)).tolist() if calls else []
    yield from part_of([call._replace(arrival_s=at_s) for call, at_s in zip(calls, times, strict=True)])


def _pairs(sheet: Sheet) -> Iterator[Pair]:
    for place, row in sheet.rows:
        turns = row.get(MARK)
        if not isinstance(turns, list) or len(turns) < 2:
            sheet.leave_out(1, "of less than two turns")
        elif all(isinstance(turn, dict) for turn in turns[:2]):
            yield Pair(place, turns[0], turns[1])
        else:
            raise sheet.fault(
                place, f"`{MARK}` must be a list of objects, got {show(turns)}; give each turn its `value`."
            )


def _call(sheet: Sheet, pair: Pair, tokenizer: Tokenizer | None) -> Call | None:
    """The request, None where it is pruned."""
    prompt, tokens = _length(sheet, pair.place, pair.prompt, tokenizer)
    output, _ = _length(sheet, pair.place, pair.answer, tokenizer)
    if min(prompt, output) < MIN_TOKENS or prompt > MAX_PROMPT_TOKENS or prompt + output > MAX_TOTAL_TOKENS:
        return None
    return Call(pair.place, 0.0, prompt, output, tokens=tokens)


def _length(
    sheet: Sheet, place: int, turn: Mapping[str, Any], tokenizer: Tokenizer | None
) -> tuple[int, list[int] | None]:
    """Of a turn, in tokens, and these where they were made."""
    if tokenizer is None:
        for name in COUNTS:
            if name in turn:
                return tokens_of(sheet, place, name, turn[name], least=0), None
        raise sheet.fault(
            place,
            f"a turn has no `{COUNTS[0]}`; give it one, or the folder of a tokenizer: servecast trace convert FILE trace.csv --tokenizer FOLDER.",
        )
    text = turn.get("value")
    if not isinstance(text, str):
        raise sheet.fault(place, f"`value` of a turn must be its text, got {show(text)}; mend the item.")
    with quiet_transformers():
        tokens = list(tokenizer(text).input_ids)
    return len(tokens), tokens
