"""Requests that no configuration serves: their prompts leave no room for output within the model's own context."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from sim.errors import TraceError
from sim.metrics.slo import Slo
from sim.specs.model import ModelSpec
from sim.workload.trace import Trace


class Unservable(NamedTuple):
    """How many of a trace's requests are rejected whatever the engine arguments are, and the limits that break for it."""

    num_requests: int
    num_arrived: int
    longest_prompt: int
    max_model_len: int
    broken: tuple[Slo, ...]

    def __str__(self) -> str:
        rejected = (
            f"{self.num_requests:,} of {self.num_arrived:,} requests {'is' if self.num_requests == 1 else 'are'} rejected by "
            f"every configuration: prompts of up to {self.longest_prompt:,} tokens, where the model's max_model_len is {self.max_model_len:,}"
        )
        if not self.broken:
            return f"{rejected}; each breaks every SLO, and they are too few to break a percentile that is limited."
        names = ", ".join(slo.name for slo in self.broken)
        return f"{rejected}; each breaks every SLO, so {names} cannot be kept: leave them out of the trace."

    def to_json(self) -> dict[str, Any]:
        facts = {
            name: getattr(self, name) for name in ("num_requests", "num_arrived", "longest_prompt", "max_model_len")
        }
        return facts | {"broken": [slo.name for slo in self.broken], "text": str(self)}


def unservable(trace: Trace, model: ModelSpec, limits: Sequence[Slo]) -> Unservable | None:
    """None where the model's context holds every prompt and a token. Raises TraceError where it holds none."""
    count, arrived = int((trace.prompt_tokens >= model.max_model_len).sum()), len(trace)
    if not count:
        return None
    if count == arrived:
        raise TraceError(
            f"{trace.source or 'the trace'}: none of its {arrived:,} requests can be served: the shortest prompt has "
            f"{int(trace.prompt_tokens.min()):,} tokens, and max_model_len of {model.name} is {model.max_model_len:,}."
        )
    broken = tuple(slo for slo in limits if _breaks(slo, count, arrived))
    longest = int(trace.prompt_tokens.max())
    return Unservable(count, arrived, longest, model.max_model_len, broken)


def _breaks(slo: Slo, count: int, arrived: int) -> bool:
    """Whether the percentile is read off, at least in part, at a request that is infinitely late."""
    return math.ceil(slo.percentile / 100 * (arrived - 1)) >= arrived - count
