"""An engine as others drive it: one that leaps (sim/engine/core.py) or one that walks (sim/engine/walking/core.py)."""

from collections.abc import Sequence
from typing import NamedTuple

from sim.engine.metrics import Metrics
from sim.engine.plans import Plan
from sim.engine.records import EngineRecords
from sim.engine.request import Request
from sim.steptime.protocol import StepTimeModel


class Abort(NamedTuple):
    """A request to be ended before its last token, the reason for the records, and the time at which the abort was asked for."""

    request: Request
    reason: str
    at_s: float


class Core:
    """Either it has a plan, which is committed as far as it has been carried out; or passes are launched while it says so, and their
    batches collected in due time; or it is told to `advance`.

    A class, since compiled code calls methods of a protocol by their names, which takes 300 instructions more.
    """

    now_s: float

    @property
    def num_in_flight(self) -> int:
        """Batches that have been launched and have not come back."""
        raise NotImplementedError

    @property
    def load(self) -> tuple[int, int]:
        """(waiting requests, running requests)."""
        raise NotImplementedError

    @property
    def next_collect_s(self) -> float:
        """When the oldest of the batches in flight comes back."""
        raise NotImplementedError

    def add_request(self, request: Request) -> None:
        """Add a request at its time of arrival; the next pass sees it, also a pass at this very instant."""
        raise NotImplementedError

    def abort(self, abort: Abort) -> None:
        """Ask for the end of a request that was added."""
        raise NotImplementedError

    def refuse(self, request: Request, reason: str) -> None:
        """Record a request as failed that was never added."""
        raise NotImplementedError

    def end_aborted(self) -> None:
        """End all requests that are to be aborted; called between two passes."""
        raise NotImplementedError

    def advance(self, until_s: float) -> None:
        """Do all passes that begin before that time."""
        raise NotImplementedError

    def load_at(self, now_s: float) -> tuple[int, int]:
        """The load just before any later time."""
        raise NotImplementedError

    def metrics_before(self, time_s: float) -> Metrics:
        """The metrics just before a time up to which the engine has advanced."""
        raise NotImplementedError

    def metrics_at(self, time_s: float) -> Metrics:
        """The metrics just before any later time."""
        raise NotImplementedError

    def metrics_within(self, plan: Plan, time_s: float) -> Metrics:
        """The metrics just before a time within a plan that has not been committed."""
        raise NotImplementedError

    def num_cached_blocks(self, request: Request) -> int:
        """Leading blocks of a request, not yet added, that are cached and that its admission could use."""
        raise NotImplementedError

    def num_cached_within(self, plan: Plan, time_s: float, request: Request) -> int:
        """The same just before a time within a plan that has not been committed."""
        raise NotImplementedError

    def num_offloaded_blocks(self, request: Request, num_cached_blocks: int) -> int:
        """Those behind the cached ones that are in host memory."""
        raise NotImplementedError

    def plan(self) -> Plan | None:
        """The next passes that are certain, up to the first after which a request may finish; None if none is certain."""
        raise NotImplementedError

    def num_begun(self, plan: Plan, now_s: float) -> int:
        """How many of the planned passes, at least one, begin before that time."""
        raise NotImplementedError

    def cut(self, plan: Plan, now_s: float) -> Plan:
        """The part of a plan that has begun before that time; at least one pass."""
        raise NotImplementedError

    def stop_within(self, plan: Plan, now_s: float) -> None:
        """Do what has begun of a plan by then; of its batches the last stays on the device, unless it comes back at that very time."""
        raise NotImplementedError

    def commit(self, plan: Plan) -> Sequence[Request]:
        """Do the planned passes; returns the requests that finish with the last of them."""
        raise NotImplementedError

    @property
    def quiet_until_s(self) -> float:
        """Passes before that time, if it is ahead, would change nothing unless somebody comes."""
        raise NotImplementedError

    def skip_calls(self, until_s: float) -> None:
        """Pass over those before that time."""
        raise NotImplementedError

    def launch(self) -> bool:
        """Schedule a pass and launch its batch; returns whether another may be launched before a batch comes back."""
        raise NotImplementedError

    def collect(self) -> Sequence[Request]:
        """Go to the end of the oldest batch in flight and take its tokens in; returns the requests that finish with it."""
        raise NotImplementedError

    def halt(self) -> dict[Request, int]:
        """Drop all requests and what is on the device; how many tokens each of them has returned."""
        raise NotImplementedError

    def use(self, step_time: StepTimeModel) -> None:
        """Steps take other times from the next pass on."""
        raise NotImplementedError

    def records(self) -> EngineRecords:
        """What has been recorded; to be asked for once, in the end."""
        raise NotImplementedError
