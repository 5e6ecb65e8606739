"""What a rank's engine is asked and told: which pass to schedule, and when it begins and ends for all ranks."""

from collections.abc import Sequence

from sim.engine.leaps import Leap
from sim.engine.metrics import Metrics
from sim.engine.plans import DecodesAhead, Plan
from sim.engine.request import Request
from sim.steptime.protocol import StepShape


class LockStepCore:
    """An engine that may be a rank's. A class, since compiled code calls methods of a protocol by their names, which takes 300 instructions more."""

    @property
    def num_in_flight(self) -> int:
        """Batches that have been launched and have not come back."""
        raise NotImplementedError

    @property
    def next_collect_s(self) -> float:
        """When the oldest of them comes back."""
        raise NotImplementedError

    @property
    def has_requests(self) -> bool:
        """Whether any has not ended."""
        raise NotImplementedError

    @property
    def decodes(self) -> DecodesAhead | None:
        """The next passes that only decode for certain, up to the first after which a request may finish."""
        raise NotImplementedError

    def leap(self, leap: Leap, num_passes: int) -> Sequence[Request]:
        """Do passes that only decode, at the times of the slowest rank; returns the requests that finish with the last of them."""
        raise NotImplementedError

    def schedule(self, now_s: float, *, is_throttled: bool = False) -> StepShape | None:
        """Schedule a pass of this rank, which `run` launches; None if it computes nothing."""
        raise NotImplementedError

    def prepare(self, from_s: float) -> float:
        """The host makes ready what was scheduled, or a dummy batch, from then on; when that is done."""
        raise NotImplementedError

    def run(self, start_s: float, duration_s: float) -> bool:
        """Launch what was scheduled; False if nothing was."""
        raise NotImplementedError

    def collect(self) -> Sequence[Request]:
        """Go to the end of the oldest batch in flight and take its tokens in; returns the requests that finish with it."""
        raise NotImplementedError

    def num_cached_blocks(self, request: Request) -> int:
        """Leading blocks of a request, not yet added, that are cached and that its admission could use."""
        raise NotImplementedError

    def num_cached_within(self, plan: Plan, time_s: float, request: Request) -> int:
        """The same just before a time within a plan that has not been committed."""
        raise NotImplementedError

    def metrics_before(self, time_s: float) -> Metrics:
        """The metrics just before a time up to which the engine has advanced."""
        raise NotImplementedError

    def metrics_within(self, plan: Plan, time_s: float) -> Metrics:
        """The metrics just before a time within a plan that has not been committed."""
        raise NotImplementedError
