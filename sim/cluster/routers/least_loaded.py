"""The replica with the least load at this instant, and pools of replicas by prompt length."""

from collections.abc import Sequence
from dataclasses import dataclass

from sim.cluster.options import option
from sim.cluster.replica import Replica
from sim.cluster.routers.router import Fleet, Router, RouterOptions, place_of
from sim.engine.request import Request
from sim.errors import ConfigError

WAITING_WEIGHT = 4  # of a waiting request against a running one in vLLM's internal load balancer (0.11)


@dataclass(frozen=True)
class LeastLoadedOptions(RouterOptions):
    def router(self, fleet: Fleet) -> Router:  # noqa: ARG002 - a router's interface
        return LeastLoaded()


class LeastLoaded(Router):
    """The least of 4 x waiting + running, as vLLM's internal load balancer scores its data-parallel engines (0.11 to 0.25).

    Deliberate differences: loads are those of this instant, where vLLM's coordinator sends them every 100 ms; the first
    of equals is sought from the replica after the last chosen one, where vLLM starts at an offset for each client.
    """

    def __init__(self) -> None:
        self._start = 0

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:  # noqa: ARG002 - a router's interface
        scores = [WAITING_WEIGHT * waiting + running for waiting, running in [replica.load for replica in replicas]]
        start = place_of(self._start, replicas)
        in_turn = scores[start:] + scores[:start]
        chosen = replicas[(start + in_turn.index(min(in_turn))) % len(scores)]
        self._start = chosen.number + 1
        return chosen


@dataclass(frozen=True)
class PromptLengthOptions(RouterOptions):
    """Prompts of at most `threshold` tokens go to the first replicas, `short` of them, or half where that is 0.

    Where none of those can be sent a request, all others are candidates.
    """

    threshold: int = option(4096, at_least=1)
    short: int = option(0, at_least=0)

    def router(self, fleet: Fleet) -> Router:
        if self.short >= fleet.num_replicas > 1:
            raise ConfigError(
                f"router prompt_length: short must leave a replica for long prompts, got {self.short} of {fleet.num_replicas} replicas."
            )
        return PromptLength(self.threshold, self.short or max(1, fleet.num_replicas // 2))


class PromptLength(Router):
    """Two pools, one for short prompts and one for long ones; the least loaded of its pool gets a request."""

    def __init__(self, threshold: int, num_short: int) -> None:
        self._threshold = threshold
        self._num_short = num_short
        self._short, self._long = LeastLoaded(), LeastLoaded()

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        first_long = place_of(self._num_short, replicas)
        if request.num_prompt_tokens <= self._threshold:
            return self._short.choose(request, replicas[:first_long] or replicas)
        return self._long.choose(request, replicas[first_long:] or replicas)
