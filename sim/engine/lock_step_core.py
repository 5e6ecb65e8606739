"""What a rank's engine is asked and told: which pass to schedule, and when it begins and ends for all ranks."""

from collections.abc import Sequence
from math import inf

from sim.engine.driven import Core
from sim.engine.leaps import Leap
from sim.engine.plans import DecodesAhead
from sim.engine.request import Request
from sim.steptime.protocol import StepShape


class LockStepCore(Core):
    """An engine that may be a rank's.

    Of one that `transfers_kv` the scheduler is called as well while it waits for KV or holds what is to be sent; after a call that ran nothing
    it sleeps for `idle_sleep_s`, and begins its dummy batch at `rests_until_s` at the earliest.
    """

    transfers_kv: bool = False
    idle_sleep_s: float = 0.0
    rests_until_s: float = -inf

    @property
    def has_transfers(self) -> bool:
        """Whether KV is on its way to it or from it, or waits to be fetched."""
        return False

    @property
    def awaits_batch(self) -> bool:
        """Whether one has been launched and has not come back that it will not begin a step without."""
        return False

    @property
    def next_transfer_end_s(self) -> float:
        """When the first of these transfers is over, `inf` as long as none knows."""
        return inf

    def ended(self) -> Sequence[Request]:
        """Requests that have ended with what calls heard of transfers; to be asked for once."""
        return ()

    @property
    def has_requests(self) -> bool:
        """Whether any has not ended."""
        raise NotImplementedError

    @property
    def decodes(self) -> DecodesAhead:
        """The next passes that only decode for certain, up to the first after which a request may finish."""
        raise NotImplementedError

    def leap(self, leap: Leap, num_passes: int) -> Sequence[Request]:
        """Do passes that only decode, at the times of the slowest rank; returns the requests that finish with the last of them."""
        raise NotImplementedError

    def schedule(self, now_s: float, *, is_throttled: bool = False) -> StepShape | None:
        """Schedule a pass of this rank, which `run` launches; None if it computes nothing."""
        raise NotImplementedError

    def prepare(self, from_s: float, free_s: float) -> float:
        """The host makes ready what was scheduled, or a dummy batch, from then on; when that is done. The device is free at `free_s`."""
        raise NotImplementedError

    def run(self, start_s: float, duration_s: float) -> bool:
        """Launch what was scheduled; False if nothing was."""
        raise NotImplementedError

    def pause(self, now_s: float) -> None:
        """A wave of steps is over; told to those that transfer KV."""

    def poll_before(self, until_s: float) -> None:
        """While all pause: of one that keeps KV in host memory, the calls before that time, each of which computes nothing."""
