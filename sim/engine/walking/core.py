"""An engine that walks: what it does next, as sim/engine/core.py, but a pass at a time. It is told the time, it keeps none.

Mirrors vLLM's v1/engine/core.py (`step` and `step_with_batch_queue`). Deliberate difference: unless `idle_sleep_s` is given, a
scheduler that has work but can schedule nothing waits for the next arrival, where vLLM polls every millisecond. Where it
polls for KV on its way, polls that would change nothing are passed over, and the next one comes when it would have come.
"""

import math
from collections.abc import Sequence
from typing import cast

from sim.engine.config import SchedulerConfig
from sim.engine.driven import Abort
from sim.engine.fruitless import FruitlessPreemptions
from sim.engine.last_collect import LastCollect
from sim.engine.leaps import Leap
from sim.engine.lock_step_core import LockStepCore
from sim.engine.metrics import Metrics
from sim.engine.plans import IDLE, UNCERTAIN, DecodesAhead, Plan
from sim.engine.records import EngineRecords
from sim.engine.replica_rows import Shown
from sim.engine.request import Request, RequestStatus
from sim.engine.unlimited import UNLIMITED
from sim.engine.walking.batch import Batch
from sim.engine.walking.calls_ahead import MOST_CALLS, MOST_PLANNED, CallsAhead, LookAhead
from sim.engine.walking.connector import Connector, Transfer
from sim.engine.walking.device import Device
from sim.engine.walking.modes import PLAIN, Modes
from sim.engine.walking.multi_connector import MultiConnector
from sim.engine.walking.offload import Offload
from sim.engine.walking.recorder import WalkRecorder
from sim.engine.walking.remote import Remote
from sim.engine.walking.scheduler import Scheduler
from sim.engine.walking.step_log import WalkLogger
from sim.engine.walking.stored import Stored
from sim.engine.walking.vain_calls import VainCalls
from sim.specs.engine import batches_in_flight
from sim.steptime.protocol import StepShape, StepTimeModel


class CallsPlan(Plan):
    """The first of some calls ahead; cut while the engine sleeps behind the last of them, it ends there."""

    __slots__ = ("ahead",)

    def __init__(self, ahead: CallsAhead, num_calls: int, now_s: float = -math.inf) -> None:
        super().__init__(num_calls, max(ahead.backs_s[num_calls - 1], now_s))
        self.ahead = ahead


class WalkingCore(LockStepCore):
    """A scheduler, a device, and the batches in flight between them, empty ones included; with the face of EngineCore.

    `now_s` is the time of the next call of the scheduler, if there is work. While `_is_stuck` only an arrival changes anything.
    """

    counts_windows: bool = True

    def __init__(
        self,
        config: SchedulerConfig,
        step_time: StepTimeModel,
        recorder: WalkRecorder,
        *,
        start_s: float,
        modes: Modes = PLAIN,
        num_keys: int = 0,
        log: WalkLogger | None = None,
        max_passes: int = UNLIMITED,
    ) -> None:
        self._connector = _connector(config, modes)
        assert self._connector is None or modes.idle_sleep_s > 0, "an engine with KV transfers polls"
        assert self._connector is None or modes.swap_space is None, "KV comes from elsewhere or is swapped"
        counts_windows = self.counts_windows and not config.caches_with_gaps
        counts = log is None and (counts_windows or not config.has_sliding_windows)
        self._scheduler = Scheduler(config, modes, self._connector, num_keys, counts=counts)
        self.state = self._scheduler.state
        self._rotation = self.state.rotation
        self._swapping = self._scheduler.swapping
        self._device = Device(step_time, modes.num_stages, start_s)
        self._recorder = recorder
        self._log = log
        if self._connector is not None:
            self._connector.attach(self.state.slots)
            if log:
                self._connector.log_to(log.kv_events)
        engine = config.engine
        self._most_in_flight = batches_in_flight(modes.num_stages, is_async=engine.async_scheduling, rules=engine.rules)
        self._look_ahead: LookAhead | None = None
        if self._rotation is not None:
            self._look_ahead = LookAhead(self._rotation, self._device, config, modes, recorder.call_rows)
        self.idle_sleep_s = modes.idle_sleep_s
        self._throttle_interval = modes.throttle_interval
        self._num_usable_blocks = config.num_usable_blocks
        self._passes_left = max_passes
        self._in_flight = self.state.in_flight
        self._scheduled: Batch | None = None
        self._is_stuck = False
        self._num_calls_since_idle = 0
        self.now_s = start_s
        self._fruitless = FruitlessPreemptions()
        counts_calls = (
            modes.throttle_interval > 0 and not self.transfers_kv
        )  # those of ranks are counted for all of them
        self._vain = VainCalls(self.state, self._connector) if self._connector and not counts_calls else None
        self._aborts: list[Abort] = []
        self._last_collect = LastCollect()
        self._counts_alone = self._rotation is not None and self._connector is None
        self._goes_on = self._counts_alone and self.state.adapters is None and not config.has_windows

    def add_request(self, request: Request) -> None:
        """Take in a request at its time of arrival; it is seen by the next call of the scheduler, also by one at this instant."""
        self.now_s = max(self.now_s, request.arrival_s)
        self._something_comes()
        self._scheduler.add_request(request)
        if self._log:
            self._log.arrived(request)

    def abort(self, abort: Abort) -> None:
        """Have a request end: with the next batch that comes back after that time, before its tokens are taken in, or with `end_aborted`.

        It is recorded as failed, with the tokens that it has returned by then; one that has finished by then has not failed.
        """
        self._something_comes()
        self._aborts.append(abort)

    def refuse(self, request: Request, reason: str) -> None:
        """Record a request as failed that has not come in."""
        self._recorder.failure(request, 0, reason)

    def end_aborted(self) -> None:
        """End the requests to be aborted, all of them, between two calls."""
        if self._aborts:
            self._something_comes()
            self._end_aborted(math.inf)

    def _something_comes(self) -> None:
        self._is_stuck = False
        if self._vain is not None:
            self._vain.are_next = False

    def _end_aborted(self, before_s: float) -> None:
        due = [abort for abort in self._aborts if abort.at_s < before_s]
        if due:
            self.state.settle()
        self._aborts = [abort for abort in self._aborts if abort.at_s >= before_s]
        for request, reason, _ in due:
            if request.status is not RequestStatus.FINISHED:
                self._scheduler.abort(request)
                self._recorder.failure(request, request.num_sampled_tokens, reason)

    def halt(self) -> dict[Request, int]:
        """Drop all requests and what is on the device; how many tokens each of them has returned."""
        self.end_aborted()
        self.state.settle()
        requests = list(self.state.progress)
        for request in requests:
            self._scheduler.abort(request)
        self._scheduler.lose_all()
        return {request: request.num_sampled_tokens for request in requests}

    def use(self, step_time: StepTimeModel) -> None:
        """Steps take other times from the next pass on."""
        self._device.use(step_time)

    def records(self) -> EngineRecords:
        """What has been recorded; to be asked for once, in the end."""
        self.state.settle()
        return self._recorder.records(self.state, self._device.busy_s, self._swapping)

    @property
    def num_in_flight(self) -> int:
        """Batches worth waiting for."""
        return 0 if self._is_stuck else len(self._in_flight)

    @property
    def load(self) -> tuple[int, int]:
        """Requests that wait and requests that run."""
        return self.state.num_waiting, self.state.num_running

    def load_before(self, now_s: float) -> tuple[int, int]:
        """The load at a time up to which the engine has advanced: a batch that is collected later has not come back."""
        return self._last_collect.load_before(self.load, now_s)

    def load_at(self, now_s: float) -> tuple[int, int]:
        """The load at any time: the engine catches up first."""
        self.advance(now_s)
        return self.load_before(now_s)

    def metrics_before(self, time_s: float) -> Metrics:
        """What the engine showed just before a time up to which it has advanced."""
        return self._last_collect.metrics_before(self.load, self.state.num_free_blocks, self._num_usable_blocks, time_s)

    def metrics_at(self, time_s: float) -> Metrics:
        """The metrics just before any later time."""
        self.advance(time_s)
        return self.metrics_before(time_s)

    def num_cached_blocks(self, request: Request) -> int:
        """Leading blocks of a request that has not come in which are cached, as far as its admission could use them."""
        return self.state.slots.kv.find_prefix(request).num_blocks

    def num_offloaded_blocks(self, request: Request, num_cached_blocks: int) -> int:
        """Those behind the cached ones that are in host memory."""
        return self._connector.num_blocks_behind(request, num_cached_blocks) if self._connector else 0

    def plan(self) -> Plan | None:
        """Calls that only decode for certain, of an engine with stages; None where one has to be launched."""
        look_ahead = self._look_ahead
        if look_ahead is None:
            return None
        before = look_ahead.times_s
        ahead = self._ahead(MOST_PLANNED, is_plan=True)
        if ahead is None:
            return None
        look_ahead.times_s = before
        return CallsPlan(ahead, ahead.num_calls)

    def metrics_within(self, plan: Plan, time_s: float) -> Metrics:
        """Those just before a time within a plan that was not committed."""
        ahead = cast("CallsPlan", plan).ahead
        num_free = ahead.num_free - ahead.num_taken(self.num_begun(plan, time_s))
        return self.state.num_waiting, self.state.num_running, 1.0 - num_free / self._num_usable_blocks

    def num_cached_within(self, plan: Plan, time_s: float, request: Request) -> int:
        """Those just before a time within a plan that was not committed."""
        ahead, num_begun = cast("CallsPlan", plan).ahead, self.num_begun(plan, time_s)
        assert self._rotation is not None, "somebody counts"
        num_passed = self._rotation.num_passed_blocks(ahead.first_call, num_begun)
        return self.state.slots.kv.num_found_after(request, ahead.num_taken(num_begun) + num_passed)

    def num_begun(self, plan: Plan, now_s: float) -> int:
        """How many of the planned calls, at least one, are made before that time."""
        return min(plan.num_passes, max(1, cast("CallsPlan", plan).ahead.num_begun(now_s)))

    def cut(self, plan: Plan, now_s: float) -> Plan:
        """What of a plan has begun by then."""
        return CallsPlan(cast("CallsPlan", plan).ahead, self.num_begun(plan, now_s), now_s)

    def stop_within(self, plan: Plan, now_s: float) -> None:
        """Do what has begun of a plan by then; the last batch stays on the device, but the one that its call waits for may be back."""
        num_begun = self.num_begun(plan, now_s)
        self._leap(num_begun - 1)
        self.launch()
        if cast("CallsPlan", plan).ahead.backs_s[num_begun - 1] <= now_s:
            self.collect()

    def commit(self, plan: Plan) -> Sequence[Request]:
        """Do the planned calls; the requests that finish with the last of them."""
        ahead = cast("CallsPlan", plan).ahead
        if self._aborts:
            self._leap(plan.num_passes - 1)  # an abort that is due may change what the last one brings back
            self.launch()
            return self.collect()
        if plan.num_passes < ahead.num_calls:
            return self._leap(plan.num_passes)
        if self._look_ahead is not None:
            self._look_ahead.times_s = ahead.times_s
        return self._do(ahead)

    def advance(self, until_s: float) -> None:
        """Do the calls that begin before that time."""
        while self.now_s < until_s and self._passes_left > 0:
            ahead = self._ahead(MOST_CALLS, until_s)
            if ahead is not None:
                self._do(ahead)
            elif self.quiet_until_s > self.now_s:
                self.skip_calls(min(self.quiet_until_s, until_s))
            elif not self.launch():
                if self.num_in_flight == 0:
                    return
                self.collect()

    # -- calls that only decode, many at once ----------------------------------------------------------------------

    def _ahead(self, most: int, until_s: float = math.inf, *, is_plan: bool = False) -> CallsAhead | None:
        """Calls made before that time that only decode for certain, `most` or fewer, which the device has run; None if the next may not."""
        look_ahead, state, in_flight = self._look_ahead, self.state, self._in_flight
        if look_ahead is None or len(in_flight) + 1 != self._most_in_flight:
            return None
        first_call = state.num_calls + 1
        most = min(most, self._passes_left)
        num_certain = min(most, look_ahead.num_certain(first_call, in_flight, is_plan=is_plan))
        if num_certain == 0 or not self._scheduler.only_decodes:
            return None
        ahead = look_ahead.calls(first_call, in_flight, state.num_free_blocks, is_plan=is_plan)
        told_s = self._connector.next_end_s if self._connector is not None else math.inf
        num_blocks_to_admit = self._scheduler.num_blocks_to_admit
        look_ahead.work_out(ahead, num_certain, until_s, told_s, self.now_s, num_blocks_to_admit)
        if ahead.num_calls == 0:
            return None
        if self._goes_on and not is_plan and not (self._aborts or any(batch.may_finish for batch in in_flight)):
            look_ahead.go_on(ahead, most, until_s, num_blocks_to_admit)
        return ahead

    def _leap(self, num_calls: int) -> Sequence[Request]:
        """Do so many calls of a plan; the requests that finish with the last of them."""
        ahead = self._ahead(num_calls) if num_calls else None
        return () if ahead is None else self._do(ahead)

    def _do(self, ahead: CallsAhead) -> Sequence[Request]:
        """Make calls that the device has run; the requests that finish with the last of them."""
        num_calls, num_before = ahead.num_calls, len(self._in_flight)
        self._passes_left -= num_calls
        self._fruitless.num_preemptions = 0
        if self._vain is not None:
            self._vain.computed()
        self.now_s = ahead.back_s
        self._recorder.calls(ahead, self.state)
        self._scheduler.make_calls(ahead)
        finished: Sequence[Request] = ()
        for _ in range(min(num_calls, num_before)):
            finished = self._take_in(self._in_flight[0])
        num_back = num_calls - num_before
        # the last one back brings nobody's last token
        passes_over = self._counts_alone and num_before > 0 and ahead.ending < 0 and not self._aborts
        self._scheduler.launch_calls(ahead, num_back if passes_over else num_back - 1)
        self._scheduled = self._in_flight[-1]
        if num_back > 0:
            if passes_over:
                finished = ()
                self._last_collect.nobody_left(self.now_s)
            else:
                finished = self._take_in(self._in_flight[0])
        self.now_s = ahead.next_s
        return finished

    @property
    def quiet_until_s(self) -> float:
        """Calls before that time, if it is ahead, would change nothing unless somebody comes; `inf` until a transfer's end is known."""
        if self._vain is None or len(self._in_flight) != self._most_in_flight - 1:
            return -math.inf
        return self._vain.until_s

    def skip_calls(self, until_s: float) -> None:
        """Pass over the calls before that time, which would change nothing: each launches an empty batch and collects the oldest."""
        in_flight, has_requests = self._in_flight, self.state.has_requests
        while self.now_s < until_s and self._passes_left > 0:
            if in_flight:
                batch = in_flight.pop(0)
                batch.start_s = batch.end_s = self.now_s
                in_flight.append(batch)
            if has_requests:
                self._passes_left -= 1
            self.now_s += self.idle_sleep_s

    def launch(self) -> bool:
        """Call the scheduler and launch what it decides; whether to call it again before a batch comes back.

        Batches without work are launched as well, for the worker to hear of transfers and to tell of them.
        """
        self._scheduled = None
        if self._is_stuck:
            return False
        if not self.state.has_work:
            if not self._in_flight:
                self._num_calls_since_idle = 0
            return False
        batch = self._schedule(is_throttled=self._is_throttled)
        self._launch(batch)
        self._scheduled = batch
        if len(self._in_flight) < self._most_in_flight and (not batch.is_empty or self.state.has_work):
            self._rest(batch, batch)
            return not self._is_stuck
        return False

    @property
    def _is_throttled(self) -> bool:
        return self._throttle_interval > 0 and self._num_calls_since_idle % self._throttle_interval != 0

    def _schedule(self, *, is_throttled: bool) -> Batch:
        if self.state.has_requests:
            self._passes_left -= 1
        self._num_calls_since_idle += 1
        batch = self._scheduler.schedule(is_throttled=is_throttled, logs=self._log is not None)
        if batch.preempted or self._fruitless.num_preemptions:
            num_sampled = batch.shape.num_sampled if batch.shape else 0
            self._fruitless.passed(len(batch.preempted), num_sampled, self.load, self.now_s)
        if self._vain is not None:
            self._vain.called(batch, self.now_s)
        return batch

    def _launch(self, batch: Batch) -> None:
        called_s = self.now_s
        if self.state.adapters is not None:
            called_s += self.state.adapters.load_s(self.state.requests_in(batch))
        start_s = self._device.begins_s(batch, called_s)
        if self._connector is not None:
            start_s = self._device.wait(start_s, self._connector.begin(self.now_s, start_s))
        if self._swapping is not None:
            start_s = self._device.wait(start_s, start_s + self._swapping.drain_copy_s())
        self._device.run(batch, start_s)
        if self._rotation is not None and not batch.is_empty:
            self._rotation.slot(batch.call).sampled_s = batch.end_s
        self._enter(batch)

    def _enter(self, batch: Batch) -> None:
        """A batch is on the device."""
        for request in batch.admitted:
            if math.isnan(request.first_scheduled_s):
                request.first_scheduled_s = self.now_s
        if self._log:
            self._log.launched(self.state, batch, self.now_s, self._in_flight)
        self._in_flight.append(batch)
        if self._rotation is not None and not batch.did_nothing:
            self._recorder.batch(batch)

    # -- in lock step with other ranks -----------------------------------------------------------------------------

    @property
    def has_requests(self) -> bool:
        """Whether any has not ended."""
        return self.state.has_requests

    @property
    def decodes(self) -> DecodesAhead:
        """No pass is certain but those in which nothing happens; with adapters that does not hold of dummy batches either."""
        return UNCERTAIN if self.has_requests or self.num_in_flight or self.state.adapters is not None else IDLE

    def leap(self, leap: Leap, num_passes: int) -> Sequence[Request]:
        """There are no plans."""
        raise NotImplementedError

    def schedule(self, now_s: float, *, is_throttled: bool = False) -> StepShape | None:
        """Call the scheduler for a pass of this rank, which `run` launches; None if it computes nothing."""
        self.now_s = now_s
        self._scheduled = None
        if not self.state.has_requests:
            return None
        batch = self._schedule(is_throttled=is_throttled)
        if batch.did_nothing:
            return None
        self._scheduled = batch
        return batch.shape

    def prepare(self, from_s: float, free_s: float) -> float:  # noqa: ARG002 - a rank's interface
        """The host makes ready what was scheduled, or a dummy batch, from then on; when that is done."""
        adapters, batch = self.state.adapters, self._scheduled
        if adapters is None:
            return from_s
        if batch is None or batch.is_empty:
            return from_s + adapters.run_dummy()
        return from_s + adapters.load_s(self.state.requests_in(batch))

    def run(self, start_s: float, duration_s: float) -> bool:
        """Launch what was scheduled; False if nothing was."""
        batch = self._scheduled
        if batch is None:
            return False
        batch.start_s, batch.end_s, batch.duration_s = start_s, start_s + duration_s, duration_s
        self._enter(batch)
        return True

    # --------------------------------------------------------------------------------------------------------------

    @property
    def next_collect_s(self) -> float:
        """When the oldest batch in flight comes back."""
        return max(self.now_s, self._in_flight[0].end_s)

    def collect(self) -> Sequence[Request]:
        """Wait for the oldest batch in flight and take its tokens in; who has finished with it."""
        self.now_s = self.next_collect_s
        batch = self._in_flight[0]
        finished = self._take_in(batch)
        self._rest(self._scheduled, batch)
        return finished

    def _take_in(self, batch: Batch) -> Sequence[Request]:
        """The oldest batch in flight is back: who has finished with it."""
        if self._counts_alone and not (batch.rows or batch.ended or batch.preempted or self._aborts):
            _pop_oldest(self._in_flight)
            self._scheduler.pass_over(batch)
            self._last_collect.nobody_left(self.now_s)
            return ()
        shown = self._shown
        if self._aborts:
            self._end_aborted(self.now_s)
        _pop_oldest(self._in_flight)
        finished = self._scheduler.take_in(batch, self.now_s)
        for progress in finished:
            self._recorder.request(progress.request, progress.num_tokens - progress.num_prompt, batch.end_s)
        requests = [progress.request for progress in finished]
        requests += self._hear_of_transfers(batch.start_s, batch.end_s)
        self._note_collect(shown)
        if not batch.did_nothing:
            if self._rotation is None:
                self._recorder.batch(batch)
            self._recorder.came_back(batch)
            if self._log:
                self._log.collected(self.state, batch, finished)
        if self._counts_alone and not (batch.rows or batch.preempted):
            self._scheduler.reuse(batch)
        return requests

    @property
    def _shown(self) -> Shown:
        return self.state.num_running, self.state.num_waiting, self.state.num_free_blocks

    def _note_collect(self, before: Shown) -> None:
        """A batch was taken in now: what has left with it, and given back."""
        num_running, num_waiting, num_free = before
        last, state = self._last_collect, self.state
        last.num_left_waiting = num_waiting - state.num_waiting
        last.num_left_running = num_running - state.num_running
        last.num_released = state.num_free_blocks - num_free
        last.at_s = self.now_s

    def _hear_of_transfers(self, start_s: float, end_s: float) -> list[Request]:
        """What the worker tells of transfers with the output of a batch of those times; the requests that end by it."""
        failed: list[Request] = []
        connector = self._connector
        if connector is None:
            return failed
        over = connector.reported(start_s if connector.reports_at_start else end_s)
        if over:
            self._something_comes()
        over.sort(key=_stores_last)
        for transfer in over:
            self._hear(transfer, failed)
        if self._log:
            for transfer in over:
                self._log.told(self.now_s, transfer, self.state.num_free_blocks)
        return failed

    def _hear(self, transfer: Transfer, failed: list[Request]) -> None:
        request = transfer.request
        if transfer.kind == "send":
            self._scheduler.sent(transfer.progress)
        elif transfer.kind != "store":
            if not transfer.has_failed:
                self._scheduler.loaded(transfer.progress)
            elif self._scheduler.load_failed(transfer.progress):
                self._recorder.request(request, request.num_sampled_tokens, self.now_s)
                failed.append(request)

    def _rest(self, scheduled: Batch | None, latest: Batch) -> None:
        """After a call that scheduled nothing: for a while, or until an arrival where nothing else can change."""
        if (scheduled is not None and not scheduled.is_empty) or not self.state.has_work:
            return
        if self.idle_sleep_s:
            self.now_s += self.idle_sleep_s
            if self._connector is not None or len(self._in_flight) < self._most_in_flight - 1:
                return
        if scheduled is not None and scheduled.did_nothing and latest.did_nothing:
            self._is_stuck = all(batch.did_nothing for batch in self._in_flight)


def _connector(config: SchedulerConfig, modes: Modes) -> Connector | None:
    """The one that KV comes and goes by, or all of them in one."""
    remote, tier, store = _remote(modes), _tier(config, modes), Stored(modes.store, config) if modes.store else None
    if (remote, tier, store).count(None) < 2:
        assert config.engine.enable_prefix_caching, "who takes a block that is being stored is known by its copies"
        return MultiConnector(remote, tier, store)
    return remote or tier or store


def _remote(modes: Modes) -> Remote | None:
    if modes.kv_transfer is None:
        return None
    assert modes.peer is not None, "KV is transferred from and to a peer"
    return Remote(modes.kv_transfer, modes.peer)


def _tier(config: SchedulerConfig, modes: Modes) -> Offload | None:
    if modes.offload is None:
        return None
    drafting = modes.drafting
    return Offload(modes.offload, config, drops=drafting is not None and drafting.drops_last_hit)


def _pop_oldest(in_flight: list[Batch]) -> None:
    for place in range(1, len(in_flight)):  # compiled, half the time of `pop(0)`
        in_flight[place - 1] = in_flight[place]
    in_flight.pop()


def _stores_last(transfer: Transfer) -> bool:
    return transfer.kind == "store"
