"""The engine: schedules a batch, launches it, takes its tokens in. It has no clock; callers tell it the time in seconds.

Mirrors vLLM's v1/engine/core.py (`step` and `step_with_batch_queue`). Deliberate difference: a scheduler that has work
but can schedule nothing waits for the next arrival, where vLLM polls every millisecond.

There are two ways to drive it. A caller that need not know when requests end calls `advance`. A caller that must know
calls `plan` for the passes that are certain, waits until their end, and calls `commit`; if none is certain, it calls `launch`
for one pass, and `collect` when the batch comes back.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import cast

from sim.engine.batch import Batch
from sim.engine.config import SchedulerConfig
from sim.engine.driven import Abort
from sim.engine.fruitless import FruitlessPreemptions
from sim.engine.growing_keys import keys_of
from sim.engine.last_collect import LastCollect
from sim.engine.leaps import DecodeSteps, Leap, after, end_s, num_launched_before
from sim.engine.lock_step_core import LockStepCore
from sim.engine.metrics import Metrics
from sim.engine.plans import IDLE, UNCERTAIN, DecodesAhead, LeapPlan, Plan
from sim.engine.progress import num_returned_tokens
from sim.engine.recorder import Recorder
from sim.engine.records import EngineRecords
from sim.engine.request import Request, RequestStatus
from sim.engine.scheduler import Scheduler
from sim.engine.step_log import StepLogger
from sim.engine.unlimited import UNLIMITED
from sim.steptime.protocol import StepShape, StepTimeModel


class EngineCore(LockStepCore):
    """A scheduler and a device that runs one batch after the other.

    Invariants: of the `_num_launched` batches the last `num_in_flight` have not come back, which are `_most_in_flight` or
    fewer; they end at the times `_ends_s`, and the device is free from `_device_free_s` on. `now_s` is the time of the next
    pass, if there is work. All times are in seconds. They run ahead of the state by `_num_held` passes of the leap `_held`, at most
    `_most_held`, which take `_num_held_blocks`, while the engine is only looked at. Of those in flight the `_idle_batches` only preempt.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        step_time: StepTimeModel,
        recorder: Recorder,
        *,
        start_s: float,
        num_keys: int = 0,
        log: StepLogger | None = None,
        max_passes: int = UNLIMITED,
    ) -> None:
        self._most_in_flight = config.num_batches_in_flight
        self._ends_s: list[float] = []
        self._step_time = step_time
        self._decode_steps: dict[int, DecodeSteps] = {}
        self._latest_steps: DecodeSteps | None = None
        self._recorder = recorder
        self._log = log
        self._passes_left = max_passes
        self._num_launched = 0
        self.now_s = self._device_free_s = start_s
        self._fruitless = FruitlessPreemptions()
        self._num_usable_blocks = config.num_usable_blocks
        self._aborts: list[Abort] = []
        self._idle_batches: list[int] = []
        self._last_collect = LastCollect()
        self._held: Leap | None = None
        self._ahead = Leap(1, start_s, 0.0, 0.0, 0.0)
        self._num_held = self._most_held = self._num_held_blocks = 0
        self._scheduled: Batch | None = None
        self._is_steady = False
        self._scheduler = Scheduler(config, num_keys)
        self._planner = self._scheduler.leap_planner
        self.state = self._scheduler.state

    def add_request(self, request: Request) -> None:
        """Add a request at its time of arrival; the next pass sees it, also a pass at this very instant."""
        self.now_s = max(self.now_s, request.arrival_s)
        self._scheduler.add_request(request)
        if self._log:
            self._log.arrived(request)

    def abort(self, abort: Abort) -> None:
        """Ask for the end of a request that was added.

        It ends when the next batch with tokens comes back after `abort.at_s`, before these are taken in, or with
        `end_aborted`: vLLM takes a batch without tokens back as the next call begins, which looks at aborts itself. It is recorded as failed, with the tokens that it has returned; if it has finished by then, nothing
        happens.
        """
        self._aborts.append(abort)

    def refuse(self, request: Request, reason: str) -> None:
        """Record a request as failed that was never added."""
        self._recorder.failure(request, 0, reason)

    def end_aborted(self) -> None:
        """End all requests that are to be aborted; called between two passes."""
        if self._aborts:
            self._end_aborted(math.inf, self._num_launched, is_scheduled=False)

    def _end_aborted(self, before_s: float, step: int, *, is_scheduled: bool) -> None:
        state = self.state
        due = [abort for abort in self._aborts if abort.at_s < before_s]
        self._aborts = [abort for abort in self._aborts if abort.at_s >= before_s]
        for request, reason, _ in due:
            if request.status is not RequestStatus.FINISHED:
                num_generated = num_returned_tokens(request, state.num_collected)
                state.abort(request, step, is_scheduled=is_scheduled)
                self._recorder.failure(request, num_generated, reason)

    def stop_within(self, plan: Plan, now_s: float) -> None:
        """Do what has begun of a plan by then; of its batches the last stays on the device, unless it comes back at that very time."""
        leaping = cast("LeapPlan", plan)
        num_begun = self.num_begun(plan, now_s)
        if num_begun > 1:
            self.commit(self._plan(leaping.leap, num_begun - 1, leaping.num_chunk_tokens))
        self.launch()
        if self._is_full and self.next_collect_s <= now_s:
            self.collect()

    def halt(self) -> dict[Request, int]:
        """Drop all requests and what is on the device; how many tokens each of them has returned."""
        self.end_aborted()
        state, is_full = self.state, self._is_full
        requests = [*state.running, *state.waiting]
        returned = {request: num_returned_tokens(request, state.num_collected) for request in requests}
        for request in requests:
            state.abort(request, self._num_launched - is_full, is_scheduled=is_full)
        return returned

    def use(self, step_time: StepTimeModel) -> None:
        """Steps take other times from the next pass on."""
        self._step_time = step_time
        self._decode_steps, self._latest_steps = {}, None

    def records(self) -> EngineRecords:
        """What has been recorded; to be asked for once, in the end."""
        return self._recorder.records(self.state)

    def records_so_far(self) -> EngineRecords:
        """What has been recorded since it was last asked for, while the engine goes on."""
        return self._recorder.records_so_far(self.state)

    @property
    def keys(self) -> Iterator[int]:
        """Of the contents that can be found here, and of those that its requests look for."""
        state = self.state
        return chain(state.kv.keys, keys_of((*state.running, *state.waiting)))

    @property
    def num_in_flight(self) -> int:
        """Batches that have been launched and have not come back."""
        return len(self._ends_s)

    @property
    def _is_full(self) -> bool:
        """As many batches are in flight as can be: none has come back since the last pass."""
        return len(self._ends_s) == self._most_in_flight

    @property
    def load(self) -> tuple[int, int]:
        """(waiting requests, running requests)."""
        return self.state.num_waiting, self.state.num_running

    def load_before(self, now_s: float) -> tuple[int, int]:
        """The load just before a time up to which the engine has advanced; a batch collected at that time or later still counts."""
        return self._last_collect.load_before(self.load, now_s)

    def load_at(self, now_s: float) -> tuple[int, int]:
        """The load just before any later time."""
        self._look(now_s)
        return self.load_before(now_s)

    def metrics_before(self, time_s: float) -> Metrics:
        """The metrics just before a time up to which the engine has advanced."""
        num_free = self.state.num_free_blocks - self._num_held_blocks
        return self._last_collect.metrics_before(self.load, num_free, self._num_usable_blocks, time_s)

    def metrics_at(self, time_s: float) -> Metrics:
        """The metrics just before any later time."""
        self._look(time_s)
        return self.metrics_before(time_s)

    def num_cached_blocks(self, request: Request) -> int:
        """Leading blocks of a request, not yet added, that are cached and that its admission could use."""
        is_full = self._is_full
        return self._scheduler.num_cached_blocks(request, self._num_launched - is_full, is_scheduled=is_full)

    def num_offloaded_blocks(self, request: Request, num_cached_blocks: int) -> int:  # noqa: ARG002 - an engine's interface
        """There is no host memory for KV."""
        return 0

    # -- all that begins before a time -----------------------------------------------------------------------------

    @property
    def quiet_until_s(self) -> float:
        """It does not poll: a pass without work is not made."""
        return -math.inf

    def skip_calls(self, until_s: float) -> None:
        """There are none to pass over."""
        raise NotImplementedError

    def advance(self, until_s: float) -> None:
        """Do all passes that begin before the time `until_s`."""
        self._do_held()
        while self.now_s < until_s and self._passes_left > 0:
            if not self._go_on(self._num_certain(foreseen=self._log is not None), until_s):
                return

    def _go_on(self, num_passes: int, until_s: float) -> bool:
        """Do some passes that begin before `until_s`, the first `num_passes` of which are certain; False if there is nothing to do."""
        if num_passes == 0:
            if not self.launch():
                if self.num_in_flight == 0:
                    return False
                self.collect()
        elif self._planner.go_one_by_one(self._num_launched):
            self._go_one_by_one(num_passes, until_s)
        else:
            self._leap(num_passes, until_s)
        return True

    def _look(self, until_s: float) -> None:
        """Advance, but hold back from the state what only decodes and lets no request finish, however often somebody looks."""
        while self.now_s < until_s and self._passes_left > 0:
            if self._num_held == 0 or not self._hold(until_s):
                self._do_held()
                num_passes = self._num_certain(foreseen=self._log is not None)
                self._most_held = self._num_to_hold(num_passes)
                if not self._hold(until_s) and not self._go_on(num_passes, until_s):
                    return

    def _num_to_hold(self, num_passes: int) -> int:
        """How many of the next passes, which are certain, may be held: until one in which a decode ends."""
        if num_passes == 0 or self.state.ended or self._planner.go_one_by_one(self._num_launched):
            return 0
        return min(num_passes, self.state.decodes.ends.next_pass - self._num_launched)

    def _hold(self, until_s: float) -> bool:
        """Hold the passes that begin before `until_s`, where more may be held than these.

        Their times are those of a leap that begins here, as if the engine had done what is held: not even a digit depends on that.
        """
        num_left = self._most_held - self._num_held
        if num_left <= 0:
            return False
        leap = self._ahead
        self._lay_next(leap, num_left)
        num_passes = num_launched_before(leap, until_s, self._most_in_flight)
        if num_passes == leap.num_steps:
            return False
        if self._num_held == 0:
            self._held, self._most_held = leap, leap.num_steps
            self._ahead = Leap(1, until_s, 0.0, 0.0, 0.0)
        self._num_held_blocks += self._planner.num_more_blocks(self._num_launched + self._num_held, num_passes, 0)
        self._num_held += num_passes
        self._bring_back(leap, num_passes)
        return True

    def _do_held(self) -> None:
        """Let the state hear of the passes that are held."""
        if self._held is not None:
            held, num_passes = self._held, self._num_held
            self._held, self._num_held, self._num_held_blocks = None, 0, 0
            self._commit(held, num_passes, 0)
            self._take_in(self._num_launched - self._most_in_flight, is_full=True)

    def _num_certain(self, *, foreseen: bool) -> int:
        """How many passes are certain to be steady, of those that can be foreseen or of all; 0 while fewer batches are in flight than can be."""
        if len(self._ends_s) + 1 < self._most_in_flight:
            return 0
        return self._planner.num_passes(self._num_launched, foreseen=foreseen)

    def _leap(self, max_passes: int, until_s: float) -> None:
        """Do the steady passes that begin before `until_s`, `max_passes` or fewer, and collect as many batches."""
        leap = self._next_leap(max_passes)
        num_passes = num_launched_before(leap, until_s, self._most_in_flight)
        to_release = self._planner.num_to_release(self._num_launched, num_passes)
        self._do_steady(leap, to_release)
        if to_release < num_passes and self.now_s < until_s:
            self._do_steady(after(leap, to_release), num_passes - to_release)

    def _next_leap(self, max_passes: int) -> Leap:
        """The next steps of the decodes alone, from the time at which the device can run them."""
        leap = Leap(1, self.now_s, 0.0, 0.0, 0.0)
        self._lay_next(leap, max_passes)
        return leap

    def _lay_next(self, leap: Leap, max_passes: int) -> None:
        """The same, in place of what a leap was."""
        decodes = self.state.decodes
        steps = self._latest_steps
        if steps is None or steps.num_decodes != decodes.count:
            steps = self._latest_steps = self._steps_of(decodes.count)
        start_s = max(self.now_s, self._device_free_s)
        max_steps = min(max_passes, self._passes_left)
        context_tokens = decodes.context_sum(self._num_launched + self._num_held)
        steps.lay(leap, context_tokens, max_steps, start_s)

    def _steps_of(self, num_decodes: int) -> DecodeSteps:
        """Step times of so many decodes."""
        steps = self._decode_steps.get(num_decodes)
        if steps is None:
            steps = self._decode_steps[num_decodes] = DecodeSteps(
                self._step_time.decode_curve(num_decodes), num_decodes
            )
        return steps

    def _go_one_by_one(self, max_passes: int, until_s: float) -> None:
        """Do the steady passes that begin before `until_s`, in which a prompt may fill the token budget."""
        planner = self._planner
        for _ in range(min(max_passes, self._passes_left)):
            num_chunk_tokens = planner.num_chunk_tokens
            self._do_steady(self._next_alone(num_chunk_tokens), 1, num_chunk_tokens)
            if self.now_s >= until_s:
                return

    def _next_alone(self, num_chunk_tokens: int) -> Leap:
        """The next step by itself."""
        duration_s = self._step_time.step_s(self._planner.shape(self._num_launched, num_chunk_tokens))
        return Leap(1, max(self.now_s, self._device_free_s), duration_s, 0.0, 0.0)

    # -- step by step ----------------------------------------------------------------------------------------------

    def plan(self) -> Plan | None:
        """The next passes that are certain, up to the first after which a request may finish; None if none is certain."""
        planner = self._planner
        num_passes = self._num_certain(foreseen=True)
        if num_passes == 0:
            return None
        if self.state.prefills:
            num_chunk_tokens = planner.num_chunk_tokens
            return self._plan(self._next_alone(num_chunk_tokens), 1, num_chunk_tokens)
        leap = self._next_leap(num_passes)
        return self._plan(leap, planner.num_to_release(self._num_launched, leap.num_steps), 0)

    def _plan(self, leap: Leap, num_passes: int, num_chunk_tokens: int) -> LeapPlan:
        return LeapPlan(leap, num_passes, num_chunk_tokens, end_s(leap, num_passes + 1 - self._most_in_flight))

    def num_begun(self, plan: Plan, now_s: float) -> int:
        """How many of the planned passes, at least one, begin before the time `now_s`."""
        return min(plan.num_passes, num_launched_before(cast("LeapPlan", plan).leap, now_s, self._most_in_flight))

    def metrics_within(self, plan: Plan, time_s: float) -> Metrics:
        """The metrics just before a time within a plan that has not been committed."""
        num_begun = self.num_begun(plan, time_s)
        num_more = self._planner.num_more_blocks(self._num_launched, num_begun, cast("LeapPlan", plan).num_chunk_tokens)
        num_free = self.state.num_free_blocks - num_more
        return self.state.num_waiting, self.state.num_running, 1.0 - num_free / self._num_usable_blocks

    def num_cached_within(self, plan: Plan, time_s: float, request: Request) -> int:
        """The leading blocks that are cached just before a time within a plan that has not been committed."""
        num_begun = self.num_begun(plan, time_s)
        num_chunk_tokens = cast("LeapPlan", plan).num_chunk_tokens
        return self._planner.num_cached_after(self._num_launched, num_begun, num_chunk_tokens, request)

    def cut(self, plan: Plan, now_s: float) -> Plan:
        """The part of a plan that has begun before that time; at least one pass."""
        leaping = cast("LeapPlan", plan)
        return self._plan(leaping.leap, self.num_begun(plan, now_s), leaping.num_chunk_tokens)

    def commit(self, plan: Plan) -> Sequence[Request]:
        """Do the planned passes; returns the requests that finish with the last of them."""
        leaping = cast("LeapPlan", plan)
        return self._do_steady(leaping.leap, plan.num_passes, leaping.num_chunk_tokens)

    def launch(self) -> bool:
        """Schedule a pass and launch its batch; returns whether another may be launched before a batch comes back."""
        batch = self._schedule()
        if batch is None:
            return False
        start_s = max(self.now_s, self._device_free_s)
        self._launch(batch, start_s, self._step_time.step_s(batch.shape) if batch.shape else 0.0)
        return self.num_in_flight < self._most_in_flight

    def _schedule(self) -> Batch | None:
        """The next pass; None if there is nothing that it could do."""
        if not self.state.has_requests:
            return None
        batch = self._scheduler.schedule(self._num_launched)
        self._passes_left -= 1
        if batch.did_nothing:
            return None
        if batch.preempted or self._fruitless.num_preemptions:
            num_sampled = batch.shape.num_sampled if batch.shape else 0
            self._fruitless.passed(len(batch.preempted), num_sampled, self.load, self.now_s)
        return batch

    @property
    def next_collect_s(self) -> float:
        """The time at which the oldest batch in flight comes back."""
        return max(self.now_s, self._ends_s[0])

    def collect(self) -> Sequence[Request]:
        """Go to the end of the oldest batch in flight and take its tokens in; returns the requests that finish with it."""
        self.now_s = self.next_collect_s
        num_in_flight = self.num_in_flight
        self._ends_s.pop(0)
        return self._take_in(self._num_launched - num_in_flight, is_full=num_in_flight == self._most_in_flight)

    # -- in lock step with other ranks -----------------------------------------------------------------------------

    @property
    def has_requests(self) -> bool:
        """Whether any has not ended."""
        return self.state.has_requests

    @property
    def decodes(self) -> DecodesAhead:
        """The next passes that only decode for certain, up to the first after which a request may finish."""
        if not self.state.has_requests and not self._ends_s:
            return IDLE
        num_passes = self._num_decoding
        if num_passes == 0:
            return UNCERTAIN
        step, decodes = self._num_launched, self.state.decodes
        return self._planner.num_to_release(step, num_passes), decodes.count, decodes.context_sum(step)

    @property
    def _num_decoding(self) -> int:
        """How many passes are certain to run the present decodes and no prompt."""
        return 0 if self.state.prefills else self._num_certain(foreseen=True)

    def leap(self, leap: Leap, num_passes: int) -> Sequence[Request]:
        """Do passes that only decode, at the times of the slowest rank; returns the requests that finish with the last of them."""
        return self._do_steady(leap, num_passes)

    def schedule(self, now_s: float, *, is_throttled: bool = False) -> StepShape | None:
        """Schedule a pass of this rank, which `run` launches; None if it computes nothing."""
        assert not is_throttled, "an engine that leaps defers no prefills"
        self.now_s = now_s
        self._scheduled = None
        self._is_steady = self._num_decoding > 0
        if self._is_steady:
            return self._planner.shape(self._num_launched, 0)
        self._scheduled = self._schedule()
        return self._scheduled.shape if self._scheduled else None

    def prepare(self, from_s: float, free_s: float) -> float:  # noqa: ARG002 - a rank's interface
        """There is nothing to make ready."""
        return from_s

    def run(self, start_s: float, duration_s: float) -> bool:
        """Launch what was scheduled; False if nothing was."""
        if self._is_steady:
            self._commit(Leap(1, start_s, duration_s, 0.0, 0.0), 1, 0)
            self._device_free_s = start_s + duration_s
            self._ends_s.append(self._device_free_s)
            return True
        if self._scheduled is None:
            return False
        self._launch(self._scheduled, start_s, duration_s)
        return True

    # -- both ways -------------------------------------------------------------------------------------------------

    def _do_steady(self, leap: Leap, num_passes: int, num_chunk_tokens: int = 0) -> Sequence[Request]:
        """Do the first passes of a leap; returns the requests that finish with the last of them."""
        self._commit(leap, num_passes, num_chunk_tokens)
        self._bring_back(leap, num_passes)
        return self._take_in(self._num_launched - self._most_in_flight, is_full=True)

    def _commit(self, leap: Leap, num_passes: int, num_chunk_tokens: int) -> None:
        """Launch the first passes of a leap."""
        state, step = self.state, self._num_launched
        num_decodes, chunk = state.decodes.count, self._planner.filling_chunk(num_chunk_tokens)
        context_tokens = state.decodes.context_sum(step)
        if self._log:
            ends_s = [end_s(leap, number + 1) for number in range(num_passes)]
            self._log.leap(self._planner, state, step, ends_s, (self.now_s, leap.start_s))
        self._planner.commit(step, num_passes, num_chunk_tokens)
        self._recorder.leap(leap, num_passes, (num_decodes, context_tokens), chunk, state)
        if num_decodes:
            self._fruitless.num_preemptions = 0
        self._passes_left -= num_passes
        self._num_launched = step + num_passes

    def _bring_back(self, leap: Leap, num_passes: int) -> None:
        """Set the times after the first passes of a leap, each of which was launched as the oldest batch came back."""
        self._device_free_s = end_s(leap, num_passes)
        num_left = self._most_in_flight - 1
        if num_passes >= num_left:  # all that were in flight before have come back
            self.now_s = end_s(leap, num_passes - num_left)
            for place in range(num_left - 1):
                self._ends_s[place] = end_s(leap, num_passes - num_left + 1 + place)
            if num_left:
                self._ends_s[num_left - 1] = self._device_free_s
            return
        for number in range(1, num_passes + 1):
            self._ends_s.append(end_s(leap, number))
            self.now_s = max(self.now_s, self._ends_s.pop(0))

    def _launch(self, batch: Batch, start_s: float, duration_s: float) -> None:
        if batch.shape is None:
            first = self._num_launched - self.num_in_flight
            self._idle_batches = [number for number in self._idle_batches if number >= first] + [self._num_launched]
        self._device_free_s = start_s + duration_s
        self._ends_s.append(self._device_free_s)
        self._num_launched += 1
        for request in batch.admitted:
            if request.num_preemptions == 0:
                request.first_scheduled_s = self.now_s
        for chunk in batch.chunks:
            if chunk.samples and chunk.request.num_sampled_tokens == 1:
                chunk.request.time_first_token(self._device_free_s)
        self._recorder.step(batch, start_s, duration_s, self.state)
        if self._log:
            self._log.step(self.state, batch, (self.now_s, start_s, self._device_free_s))

    def _take_in(self, batch: int, *, is_full: bool) -> Sequence[Request]:
        """A batch has come back now: end aborted requests, release those that finish, and return these.

        `is_full`: as many batches were in flight as can be; if not, the pass before this launched none.
        """
        state = self.state
        finished: Sequence[Request] = ()
        last = self._last_collect
        last.num_left_waiting = last.num_left_running = last.num_released = 0
        ended = state.ended
        if self._aborts or (ended and batch in ended):
            finished = self._release(batch, is_full=is_full)
        state.num_collected = batch + 1
        last.at_s = self.now_s
        if self._log:
            self._log.collected(state, batch, finished)
        if finished:
            for request in finished:
                self._recorder.request(request, request.max_tokens, self.now_s)
        return finished

    def _release(self, batch: int, *, is_full: bool) -> Sequence[Request]:
        """Release the requests that leave with a batch, and note how many requests and blocks those are."""
        state = self.state
        num_waiting, num_running, num_free = state.num_waiting, state.num_running, state.num_free_blocks
        if self._aborts and batch not in self._idle_batches:
            state.num_collected = batch
            self._end_aborted(self.now_s, self._num_launched - is_full, is_scheduled=is_full)
        finished = state.release_ended(batch) if batch in state.ended else ()
        last = self._last_collect
        last.num_left_waiting = num_waiting - state.num_waiting
        last.num_left_running = num_running - state.num_running
        last.num_released = state.num_free_blocks - num_free
        return finished
