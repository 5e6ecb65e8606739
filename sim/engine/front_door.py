"""What is let in: requests that can never run are turned away with their reason."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np

from sim.engine.config import SchedulerConfig
from sim.engine.kv_cache_manager import longest_that_fits
from sim.engine.records import Ints
from sim.workload.trace import Trace


class FrontDoor(NamedTuple):
    """The `max_tokens` that each request generates, and by row why others are `rejected`.

    Of several pools, those serve a request that answer it at the greatest length: where there are others,
    `unable` has their numbers by row. It is rejected if none serves it.
    """

    max_tokens: Ints
    rejected: Mapping[int, str]
    unable: Mapping[int, frozenset[int]]

    @classmethod
    def of(
        cls,
        trace: Trace,
        configs: Mapping[int, SchedulerConfig],
        slots_ahead: Sequence[int] = (),
        *,
        capacity_too: bool = True,
    ) -> Self:
        """The pools' `configs` by number, and the slots that each takes ahead of a request's tokens (none, unless given).

        Without `capacity_too`, only what vLLM itself refuses is rejected.
        """
        outputs = [capped_outputs(trace, config.max_model_len) for config in configs.values()]
        reasons = [
            rejections(trace, max_tokens, config, ahead, capacity_too=capacity_too)
            for max_tokens, config, ahead in zip(
                outputs, configs.values(), slots_ahead or [0] * len(configs), strict=True
            )
        ]
        if len(configs) == 1:
            return cls(outputs[0], reasons[0], {})
        answers = np.array([answered(*found) for found in zip(outputs, reasons, strict=True)])
        longest = answers.max(axis=0)
        is_unable, pools = answers < longest, np.array(list(configs))
        return cls(
            max_tokens=np.where(longest > 0, longest, outputs[0]),
            rejected={row: _joined(row, reasons) for row in np.flatnonzero(longest == 0).tolist()},
            unable={
                row: frozenset(pools[is_unable[:, row]].tolist())
                for row in np.flatnonzero(is_unable.any(axis=0)).tolist()
            },
        )

    @property
    def answers(self) -> Ints:
        """Tokens that each request generates, none where it is rejected."""
        return answered(self.max_tokens, self.rejected)


def answered(max_tokens: Ints, rejected: Mapping[int, str]) -> Ints:
    """A copy of the column, 0 in the rows that are rejected."""
    answers = max_tokens.copy()
    answers[list(rejected)] = 0
    return answers


def _joined(row: int, reasons: Iterable[Mapping[int, str]]) -> str:
    """Each reason once."""
    return "; ".join(dict.fromkeys(found[row] for found in reasons))


def capped_outputs(trace: Trace, max_model_len: int) -> Ints:
    """The trace's own column where nothing is to be capped."""
    room = np.maximum(0, max_model_len - trace.prompt_tokens)
    is_capped = (trace.output_tokens > room).any()
    return np.minimum(trace.output_tokens, room) if is_capped else trace.output_tokens


def rejections(
    trace: Trace, max_tokens: Ints, config: SchedulerConfig, slots_ahead: int = 0, *, capacity_too: bool = True
) -> dict[int, str]:
    """Why requests can never run, by row: what vLLM's front end refuses, and what its bare scheduler would hold for ever."""
    prompts, kv_tokens = trace.prompt_tokens, trace.prompt_tokens + max_tokens - 1
    longest = longest_that_fits(config, slots_ahead) if capacity_too else np.iinfo(np.int64).max
    suspects = (prompts < 1) | (max_tokens < 1) | (kv_tokens > longest)
    return {
        row: _reason(int(prompts[row]), int(max_tokens[row]), int(kv_tokens[row]), config, slots_ahead)
        for row in np.flatnonzero(suspects).tolist()
    }


def _reason(
    num_prompt_tokens: int, max_tokens: int, num_kv_tokens: int, config: SchedulerConfig, slots_ahead: int
) -> str:
    if num_prompt_tokens < 1:
        return "the prompt is empty"
    if num_prompt_tokens >= config.max_model_len:
        return f"a prompt of {num_prompt_tokens} tokens leaves no room for output within max_model_len {config.max_model_len}"
    if max_tokens < 1:
        return "no output was asked for"
    num_ahead = min(num_kv_tokens + slots_ahead, config.max_model_len) - num_kv_tokens
    ahead = f", and {num_ahead} slots ahead of them," if num_ahead else ""
    return f"{num_kv_tokens} tokens of prompt and output{ahead} need more than the {config.num_usable_blocks} KV blocks there are"
