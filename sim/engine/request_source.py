"""Requests from a trace, and the checks at the front door: what can never run is turned away with its reason."""

from collections.abc import Iterator
from itertools import repeat

import numpy as np

from sim.engine.config import SchedulerConfig
from sim.engine.content import KeysByRow, shared_block_keys
from sim.engine.kv_cache_manager import longest_that_fits
from sim.engine.prefix_cache import NO_COPIES, KeyedBlocks
from sim.engine.records import Ints
from sim.engine.request import Request
from sim.workload.trace import Trace

ROWS_AT_ONCE = 256


class RequestSource:
    """A trace's requests in order of arrival, each made when it is asked for; those that can never run are left out.

    `max_tokens` are the outputs, capped by max_model_len; `rejected` holds the reasons by row; `num_keys` counts the
    block contents that requests share. Without `capacity_too`, only what vLLM itself refuses is rejected.
    """

    def __init__(self, trace: Trace, config: SchedulerConfig, *, capacity_too: bool = True) -> None:
        self.trace = trace
        self.max_tokens = capped_outputs(trace, config.max_model_len)
        self.rejected = rejections(trace, self.max_tokens, config, capacity_too=capacity_too)
        self._keys: KeysByRow | None = None
        self.num_keys = 0
        if config.engine.enable_prefix_caching and trace.says_contents:
            self._keys, self.num_keys = shared_block_keys(trace, self.answers(), config.block_size)
        self._num_groups = len(config.kv_groups)

    def answers(self) -> Ints:
        """Tokens that each request generates, none where it is rejected."""
        answers = self.max_tokens.copy()
        answers[list(self.rejected)] = 0
        return answers

    def __len__(self) -> int:
        return len(self.trace)

    def __iter__(self) -> Iterator[Request]:
        for first in range(0, len(self.trace), ROWS_AT_ONCE):
            yield from self._requests(slice(first, first + ROWS_AT_ONCE))

    def _requests(self, rows: slice) -> Iterator[Request]:
        """The requests of some rows of the trace: plain numbers, for numpy's cost the engine dear."""
        trace = self.trace
        ids, arrivals_s = trace.request_id[rows], trace.arrival_s[rows].tolist()
        prompts, outputs = trace.prompt_tokens[rows].tolist(), self.max_tokens[rows].tolist()
        keys = repeat(NO_COPIES) if self._keys is None else self._keys[rows]
        numbers = range(rows.start, rows.stop)
        for row, shared, name, arrival_s, num_prompt_tokens, max_tokens in zip(
            numbers, keys, ids, arrivals_s, prompts, outputs, strict=False
        ):
            if row in self.rejected:
                continue
            request = Request(row, name, arrival_s, num_prompt_tokens, max_tokens)
            if trace.priority is not None:
                request.priority = int(trace.priority[row])
            if len(shared):
                nothing = [NO_COPIES] * self._num_groups
                request.keyed = KeyedBlocks(shared, nothing, [0] * self._num_groups)
                request.num_shared_blocks = len(shared)
            yield request


def capped_outputs(trace: Trace, max_model_len: int) -> Ints:
    """The trace's own column where nothing is to be capped."""
    room = np.maximum(0, max_model_len - trace.prompt_tokens)
    is_capped = (trace.output_tokens > room).any()
    return np.minimum(trace.output_tokens, room) if is_capped else trace.output_tokens


def rejections(trace: Trace, max_tokens: Ints, config: SchedulerConfig, *, capacity_too: bool = True) -> dict[int, str]:
    """Why requests can never run, by row: what vLLM's front end refuses, and what its bare scheduler would hold for ever."""
    prompts, kv_tokens = trace.prompt_tokens, trace.prompt_tokens + max_tokens - 1
    longest = longest_that_fits(config) if capacity_too else np.iinfo(np.int64).max
    suspects = (prompts < 1) | (max_tokens < 1) | (kv_tokens > longest)
    return {
        row: _reason(int(prompts[row]), int(max_tokens[row]), int(kv_tokens[row]), config)
        for row in np.flatnonzero(suspects).tolist()
    }


def _reason(num_prompt_tokens: int, max_tokens: int, num_kv_tokens: int, config: SchedulerConfig) -> str:
    if num_prompt_tokens < 1:
        return "the prompt is empty"
    if num_prompt_tokens >= config.max_model_len:
        return f"a prompt of {num_prompt_tokens} tokens leaves no room for output within max_model_len {config.max_model_len}"
    if max_tokens < 1:
        return "no output was asked for"
    return (
        f"{num_kv_tokens} tokens of prompt and output need more than the {config.num_usable_blocks} KV blocks there are"
    )
