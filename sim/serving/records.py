"""The facts of a run, in columns; every statistic is computed from them afterwards."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class RequestRecords:
    """One entry a request, in trace order. Times are NaN where the thing never happened."""

    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints  # asked for, capped by max_model_len
    generated_tokens: Ints
    first_scheduled_s: Floats
    first_token_s: Floats
    finish_s: Floats
    num_preemptions: Ints
    num_cached_tokens: Ints  # prefix-cache hit at first admission
    rejected: tuple[str | None, ...]  # the reason, or None

    def __len__(self) -> int:
        return len(self.arrival_s)


@dataclass(frozen=True)
class StepRecords:
    """One entry a step that ran tokens, in order of launch."""

    start_s: Floats
    end_s: Floats
    num_decodes: Ints  # requests with one scheduled token
    num_chunk_tokens: Ints  # tokens of all others
    num_running: Ints  # after scheduling
    num_waiting: Ints
    num_free_blocks: Ints
    num_preempted: Ints

    def __len__(self) -> int:
        return len(self.start_s)


@dataclass(frozen=True)
class Records:
    """What a run leaves: requests, steps, inter-token gaps with how often each occurred, and cache totals."""

    requests: RequestRecords
    steps: StepRecords
    itl_s: Floats
    itl_count: Ints
    prefix_cache_queries: int  # tokens, as vLLM counts them
    prefix_cache_hits: int
    num_evictions: int
