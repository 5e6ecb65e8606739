"""Places for replicas, and what becomes of the one in each: it starts, is ready, drains and is gone; or it is lost and starts again.

A server of several data-parallel engines is in one place and comes and goes whole: where an engine dies, vLLM shuts down the others and the API servers
(CoreEngineProcManager.monitor_engine_liveness of v1/engine/utils.py and wait_for_completion_or_failure of v1/utils.py, 0.32).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from math import inf, prod
from typing import Protocol

import simpy

from sim.cluster.arrivals import Process
from sim.cluster.clock import FLEET, At
from sim.cluster.handovers import Handover
from sim.cluster.lives import Life
from sim.cluster.replica import Replica
from sim.engine.metrics import Metrics
from sim.engine.request import Request
from sim.steptime.perturbed import PerturbedStepTime, all_off_by
from sim.steptime.protocol import StepTimeModel


class State(Enum):
    """EMPTY places hold no GPUs; a LOST replica's machine is not back yet."""

    EMPTY = "empty"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    LOST = "lost"


WANTED = (State.STARTING, State.READY, State.LOST)
"""Of replicas that are there or will be."""


class Address(Replica, Protocol):
    """Where requests are sent, and may be taken back from."""

    def abort(self, *answers: Request, reason: str) -> None:
        """End answers of a request that was submitted which have not come; they are recorded as failed, and come no more."""
        ...

    def replica_of(self, answer: Request) -> int:
        """The number of the replica that has it, or had it last."""
        ...


class Tenant(Protocol):
    """What is in a place: a replica, or a server of several. `at_addresses` it takes requests."""

    @property
    def at_addresses(self) -> Sequence[Address]: ...

    @property
    def engines_now(self) -> Sequence[Metrics]:
        """What each of its engines shows after all that has come back by now."""
        ...

    def halt(self) -> dict[Request, int]:
        """It is lost now: the tokens that each request has returned."""
        ...

    def use(self, step_time: StepTimeModel) -> None:
        """Steps of passes that have not begun take other times from now on."""
        ...


class Place:
    """It has the numbers of some `replicas`, one or those of a server, and of some `addresses`. `in_flight` are requests that were sent to the replica and have not ended, of several answers the first; `held` is what it keeps for others besides;
    `slowdowns` multiply its step times.

    A `tenant` that is lost stays here until another is ready; the gateway notices at `noticed_s`. `turn` counts what has begun here, so that a process that slept sees whether it is still wanted.
    """

    def __init__(self, number: int, pool: int, replicas: range, addresses: range) -> None:
        self.number = number
        self.pool = pool
        self.replicas = replicas
        self.addresses = addresses
        self.state = State.EMPTY
        self.tenant: Tenant | None = None
        self.in_flight: dict[Request, None] = {}
        self.held: dict[Handover[Address], None] = {}
        self.slowdowns: list[float] = []
        self.noticed_s = -inf
        self.turn = 0
        self.started_s = 0.0
        self.ready_s: list[float] = []
        self.lost_s: list[float] = []


class Places:
    """All places by number; those listening are told of a replica that is `on_ready`, `on_lost` with its requests and the tokens that each answer
    had returned, or `on_gone`.
    """

    def __init__(
        self,
        env: simpy.Environment,
        places: Sequence[Place],
        make: Callable[[Place], Tenant],
        *,
        start_up_s: Sequence[float],
        step_times: Sequence[StepTimeModel],
        noticed_s: Callable[[float], float],
    ) -> None:
        self._env = env
        self._make = make
        self._start_up_s = start_up_s
        self._step_times = step_times
        self._noticed_s = noticed_s
        self._all = places
        self._at_address = [place for place in places for _ in place.addresses]
        self._ended: list[Life] = []
        self.on_ready: Callable[[Place], None] = lambda _place: None
        self.on_lost: Callable[[Place, Sequence[Request], Mapping[Request, int]], None] = lambda *_: None
        self.on_gone: Callable[[Place], None] = lambda _place: None

    def __getitem__(self, number: int) -> Place:
        return self._all[number]

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Place]:
        return iter(self._all)

    def at(self, address: int) -> Place:
        """The one that has the address of that number."""
        return self._at_address[address]

    @property
    def num_addresses(self) -> int:
        return len(self._at_address)

    def in_state(self, *states: State) -> list[Place]:
        """In order of their numbers."""
        return [place for place in self._all if place.state in states]

    def of_pool(self, pool: int, *states: State) -> list[Place]:
        """The same, of one pool."""
        return [place for place in self.in_state(*states) if place.pool == pool]

    def num_wanted(self, pool: int) -> int:
        """Replicas of a pool that have been asked for and not been given up."""
        return len(self.of_pool(pool, *WANTED))

    def unready_s(self, pool: int) -> float:
        """How long no replica of a pool has been ready, since the last one was lost or asked for."""
        places = [place for place in self._all if place.pool == pool]
        if any(place.state is State.READY for place in places):
            return 0.0
        return self._env.now - max(place.lost_s[-1] if place.lost_s else place.started_s for place in places)

    # -- from start to end -----------------------------------------------------------------------------------------

    def open(self, place: Place) -> None:
        """A replica is there and ready, as at the beginning of a run."""
        self._begin(place)
        self._make_ready(place)

    def scale_to(self, pool: int, num_replicas: int) -> None:
        """Start replicas in the first empty places, as far as there are any, or drain: first those that are not ready, then the last."""
        missing = num_replicas - self.num_wanted(pool)
        for place in self.of_pool(pool, State.EMPTY)[: max(0, missing)]:
            self._begin(place)
            self._start(place, after_s=0.0)
        given_up = sorted(
            self.of_pool(pool, *WANTED),
            key=lambda place: (place.state is State.READY, -place.number),
        )
        for place in given_up[: max(0, -missing)]:
            self._drain(place)

    def _begin(self, place: Place) -> None:
        place.started_s, place.ready_s, place.lost_s = self._env.now, [], []

    def _start(self, place: Place, after_s: float) -> None:
        place.turn += 1
        place.state = State.LOST if after_s else State.STARTING
        self._env.process(self._starting(place, place.turn, after_s))

    def _starting(self, place: Place, turn: int, after_s: float) -> Process:
        if after_s:
            yield At(self._env, self._env.now + after_s, FLEET)
            if place.turn != turn:
                return
            place.state = State.STARTING
        yield At(self._env, self._env.now + self._start_up_s[place.pool], FLEET)
        if place.turn == turn:
            self._make_ready(place)

    def _make_ready(self, place: Place) -> None:
        place.turn += 1
        place.state = State.READY
        place.tenant = self._make(place)
        place.ready_s.append(self._env.now)
        self.on_ready(place)

    def _drain(self, place: Place) -> None:
        """It gets no more requests, and is gone when it has answered those it has."""
        place.turn += 1
        place.state = State.DRAINING
        self.give_back_if_drained(place)

    def give_back_if_drained(self, place: Place) -> None:
        """Give back the GPUs of a replica that drains and has answered all its requests."""
        if place.state is State.DRAINING and not place.in_flight and not place.held:
            self._ended.append(self._life(place, self._env.now))
            place.state, place.tenant = State.EMPTY, None
            self.on_gone(place)

    # -- faults ----------------------------------------------------------------------------------------------------

    def lose(self, place: Place, for_s: float) -> None:
        """Whatever is in a place is lost now; its machine is back `for_s` later, and a replica starts again unless it was to go."""
        state, tenant = place.state, place.tenant
        if state not in {State.READY, State.STARTING, State.DRAINING}:
            return
        returned = tenant.halt() if tenant and state is not State.STARTING else {}
        lost = list(place.in_flight)
        if state is not State.STARTING:
            place.lost_s.append(self._env.now)
        if state is State.READY:
            place.noticed_s = self._noticed_s(self._env.now)
        if state is State.DRAINING:
            place.turn += 1
        else:
            self._start(place, after_s=for_s)
        self.on_lost(place, lost, returned)
        self.give_back_if_drained(place)

    def candidates(self) -> list[Address]:
        """The addresses of those that the gateway takes for ready, in order of their numbers."""
        found: list[Address] = []
        for place in self._all:
            if place.tenant and self._seems_ready(place):
                found += place.tenant.at_addresses
        return found

    def _seems_ready(self, place: Place) -> bool:
        is_hidden = place.state in {State.LOST, State.STARTING} and self._env.now < place.noticed_s
        return place.state is State.READY or is_hidden

    def slow(self, place: Place, factor: float) -> None:
        """Steps in that place take longer from now on."""
        place.slowdowns.append(factor)
        self._set_pace(place)

    def slow_no_more(self, place: Place, factor: float) -> None:
        """As before `slow`."""
        place.slowdowns.remove(factor)
        self._set_pace(place)

    def _set_pace(self, place: Place) -> None:
        if place.tenant and place.state in {State.READY, State.DRAINING}:
            place.tenant.use(self.step_time(place))

    def step_time(self, place: Place) -> StepTimeModel:
        """Of the replica there."""
        model = self._step_times[place.pool]
        return PerturbedStepTime(model, all_off_by(prod(place.slowdowns))) if place.slowdowns else model

    # -- records ---------------------------------------------------------------------------------------------------

    def lives(self) -> tuple[Life, ...]:
        """Those that ended, in order of their ends, and those that did not."""
        there = [place for place in self._all if place.state is not State.EMPTY]
        return (*self._ended, *(self._life(place, inf) for place in there))

    def _life(self, place: Place, gone_s: float) -> Life:
        return Life(place.number, place.pool, place.started_s, tuple(place.ready_s), tuple(place.lost_s), gone_s)
