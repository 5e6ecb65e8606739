"""The router's interface, and what it knows of the fleet before the first request arrives."""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from random import Random
from typing import ClassVar, TypeVar

from sim.cluster.replica import Replica
from sim.cluster.routers.prompts import PromptTree, prompts_as_sent
from sim.engine.config import SchedulerConfig
from sim.engine.request import Request
from sim.engine.request_source import RequestSource
from sim.errors import ConfigError
from sim.workload.trace import Trace

T = TypeVar("T")


@dataclass(frozen=True)
class Fleet:
    """The configuration of each replica, by its number, and the source of requests: each row's prompt and session.

    `seed` is that of the run; each router draws from a generator of its own. It `sends_again` what was lost. With a `clock` requests may have
    arrived elsewhere before.
    """

    configs: Sequence[SchedulerConfig]
    source: RequestSource | None
    seed: int = 0
    sends_again: bool = False
    clock: Callable[[], float] | None = None

    @property
    def num_replicas(self) -> int:
        """How many numbers there are; the replicas among which a router chooses may be fewer."""
        return len(self.configs)

    @property
    def block_size(self) -> int:
        """That of the first replica."""
        return self.configs[0].block_size

    def require_same_blocks(self, router: str) -> None:
        """Raises ConfigError for a router that compares blocks of replicas, unless all cache blocks of one size, or none."""
        kinds = dict.fromkeys(map(_cached_blocks, self.configs))
        if len(kinds) > 1:
            raise ConfigError(
                f"router {router} compares the blocks that replicas cache, so that all must cache alike, in blocks of one size; "
                f"got {' and '.join(kinds)}; choose another router."
            )

    @property
    def trace(self) -> Trace:
        """Raises ConfigError where requests come as a stream, of which nobody knows the whole."""
        return self._whole_source.trace

    @property
    def _whole_source(self) -> RequestSource:
        if self.source is None:
            raise ConfigError(
                "this router knows requests by the sessions or prompts of the whole trace, and a stream is never there as a whole;"
                " choose random, round_robin or least_loaded, or replay without `stream`."
            )
        return self.source

    @cached_property
    def prompts(self) -> PromptTree:
        """The tree of shared prefixes, built at first use."""
        return PromptTree(prompts_as_sent(self.trace, self._whole_source.answers()), sends_again=self.sends_again)

    def rng(self) -> Random:
        """A fresh generator."""
        return Random(self.seed)  # noqa: S311 - a simulation's draws


def _cached_blocks(config: SchedulerConfig) -> str:
    groups = f" in {len(config.kv_groups)} KV groups" if len(config.kv_groups) > 1 else ""
    return f"{config.block_size} tokens{groups}" if config.engine.enable_prefix_caching else "no prefix caching"


class Router(ABC):
    """Chooses a replica for each request as it arrives.

    A router that `listens` is told of every answer: its replicas say when a request has ended, which costs events. One with
    a `scrape_interval_s` reads the replicas' metrics as they were at the last multiple of it. Unless it `asks_the_clock`, it asks
    for nothing else of theirs, neither loads nor caches, which are those of the clock's instant. What it keeps of a replica it
    keeps by number, for the candidates are not always the same.
    """

    listens: bool = False
    asks_the_clock: bool = True
    scrape_interval_s: float | None = None

    @abstractmethod
    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        """The candidate that gets the request, which arrives now; it is sent there at once.

        There is at least one, and they stand in order of their numbers.
        """

    def answered(self, request: Request, replica: int) -> None:  # noqa: B027 - few routers listen
        """A request that was sent to the replica of that number has ended."""

    def joined(self, replica: int) -> None:  # noqa: B027 - few routers mind
        """A replica stands at that number, where none did, that was never sent anything."""

    def left(self, replica: int) -> None:  # noqa: B027 - few routers mind
        """The replica of that number is gone, and what it held with it. In a fleet that stays as it is, none ever is."""


@dataclass(frozen=True)
class RouterOptions(ABC):
    """A kind of router with its options, checked: a field each, of type int, float or bool.

    `is_of_one_server`: its replicas are engines of one server, which has the limits of what comes in. `is_blind`: it chooses
    by the requests alone, and neither listens nor asks a replica for anything but its number.
    """

    is_of_one_server: ClassVar[bool] = False

    @property
    def is_blind(self) -> bool:
        return False

    @abstractmethod
    def router(self, fleet: Fleet) -> Router:
        """A fresh router."""


def one_of(tied: Sequence[T], rng: Random) -> T:
    """One of equals, drawn where there are several."""
    return tied[0] if len(tied) == 1 else tied[rng.randrange(len(tied))]


number_of = attrgetter("number")


def place_of(number: int, replicas: Sequence[Replica]) -> int:
    """Where a replica stands among the candidates, or the next of a higher number would."""
    is_there = number < len(replicas) and replicas[number].number == number  # as where nobody is missing
    return number if is_there else bisect_left(replicas, number, key=number_of)


def numbered(number: int, replicas: Sequence[Replica]) -> Replica | None:
    """The candidate of that number, if it is one."""
    place = place_of(number, replicas)
    return replicas[place] if place < len(replicas) and replicas[place].number == number else None
