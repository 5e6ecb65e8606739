"""The router's interface, and what it knows of the fleet before the first request arrives."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random

from sim.cluster.replica import Replica
from sim.cluster.routers.prompts import PromptTree, prompts_as_sent
from sim.engine.config import SchedulerConfig
from sim.engine.request import Request
from sim.engine.request_source import RequestSource
from sim.workload.trace import Trace


@dataclass(frozen=True)
class Fleet:
    """The number and configuration of replicas, and the source of requests: each row's prompt and session.

    `seed` is that of the run; each router draws from a generator of its own.
    """

    num_replicas: int
    source: RequestSource
    config: SchedulerConfig
    seed: int = 0

    @property
    def trace(self) -> Trace:
        return self.source.trace

    @cached_property
    def prompts(self) -> PromptTree:
        """The tree of shared prefixes, built at first use."""
        return PromptTree(prompts_as_sent(self.trace, self.source.answers()))

    def rng(self) -> Random:
        """A fresh generator."""
        return Random(self.seed)  # noqa: S311 - a simulation's draws


class Router(ABC):
    """Chooses a replica for each request as it arrives.

    A router that `listens` is told of every answer: its replicas say when a request has ended, which costs events. One with
    a `scrape_interval_s` reads the replicas' metrics as they were at the last multiple of it.
    """

    listens: bool = False
    scrape_interval_s: float | None = None

    @abstractmethod
    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:
        """The number of the replica that gets the request, which arrives now; it is sent there at once."""

    def answered(self, request: Request, replica: int) -> None:  # noqa: B027 - few routers listen
        """A request that was sent to a replica has ended."""


@dataclass(frozen=True)
class RouterOptions(ABC):
    """A kind of router with its options, checked: a field each, of type int, float or bool."""

    @abstractmethod
    def router(self, fleet: Fleet) -> Router:
        """A fresh router."""


def one_of(tied: Sequence[int], rng: Random) -> int:
    """One of equals, drawn where there are several."""
    return tied[0] if len(tied) == 1 else tied[rng.randrange(len(tied))]
