"""Decodes that are counted and not visited: with n pipeline stages each of them runs in every n-th call, without any in every call.

So it is under sync scheduling, where a batch is back n calls after its own and no sooner, and under async scheduling, where vLLM
paces decodes. Calls that are n apart make a *slot*, of which one is a *round*; a slot's decodes are counted by rounds as
sim/engine/decodes.py counts them by passes.
"""

from bisect import insort
from dataclasses import replace

from sim.engine.common_readers import common_readers
from sim.engine.config import SchedulerConfig
from sim.engine.decodes import Decodes
from sim.engine.kv_cache_manager import KVCacheManager
from sim.engine.request import Request
from sim.engine.step_calendar import StepCalendar
from sim.engine.walking.batch import Batch, Row
from sim.engine.walking.connector import Connector
from sim.engine.walking.modes import PLAIN, Modes
from sim.engine.walking.progress import Progress, admission_order
from sim.engine.windows import WindowFrees


def rotates(config: SchedulerConfig, modes: Modes) -> bool:
    """Whether decodes keep to their slots, and all that they ask for is a token a round."""
    rules, is_async = config.engine.rules, config.engine.async_scheduling
    has_stages = modes.num_stages > 1
    is_paced = rules.paces_decodes or not has_stages
    if is_async and not (is_paced and rules.stops_at_last_token):
        return False
    if has_stages and (modes.lora is not None or config.has_windows):
        return False
    others = replace(modes, num_stages=1, idle_sleep_s=0.0, acceptance=None)
    return replace(others, lora=None, kv_transfer=None, peer=None, offload=None, store=None) == PLAIN


class Slot:
    """The decodes of every n-th call; the last batch that was launched has number `last_number`, and samples until `sampled_s`."""

    __slots__ = ("decodes", "last_number", "sampled_s")

    def __init__(self, config: SchedulerConfig) -> None:
        self.decodes = Decodes(config.block_size, common_readers(config))
        self.sampled_s = -1.0
        self.last_number = -1


class Rotation:
    """Who is counted, by slot, and the running requests that are `walked`, in order of admission.

    Invariants: a request is counted from the call on in which its row samples, its `counted_call`, until it has finished; what
    its Progress says is that of this call until then, or until it is *settled*, which ends the counting of all. The contents
    that others may ask for are all registered of one that is counted, and nothing of it is left to be stored elsewhere; `windows`
    counts the blocks that its windows pass, none of which others may ask for. Where layers keep states, one is counted between the ends of its blocks, and
    `pauses` has those that are to be walked from a call on. `last_call` is the last that was launched, and `num_launched` batches did something.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        num_stages: int,
        progress: dict[Request, Progress],
        connector: Connector | None,
        kv: KVCacheManager,
    ) -> None:
        self._kv = kv
        self._num_in_flight = config.num_batches_in_flight
        self.windows = WindowFrees(config.passing_delays, kv.pool.passed) if config.has_sliding_windows else None
        self._keeps_states = config.keeps_states
        self.pauses = StepCalendar()
        self._num_slots = num_stages
        self._block_size = config.block_size
        self._is_async = config.engine.async_scheduling
        self._caches_prefixes = config.engine.enable_prefix_caching
        self._progress = progress
        self._connector = connector
        self.slots = [Slot(config) for _ in range(num_stages)]
        self.walked: list[Progress] = []
        self.last_call = 0
        self.num_launched = 0

    def slot(self, call: int) -> Slot:
        return self.slots[call % self._num_slots]

    def place(self, call: int) -> int:
        """The number of its slot."""
        return call % self._num_slots

    def round(self, call: int) -> int:
        return call // self._num_slots

    # -- who is counted --------------------------------------------------------------------------------------------

    def counted(self, call: int, running: list[Progress]) -> list[Progress]:
        """The counted ones of a call, in order of admission."""
        at, num_slots = self.round(call), self._num_slots
        return [
            progress
            for progress in running
            if 0 <= progress.counted_call < call
            and (call - progress.counted_call) % num_slots == 0
            and progress.request.last_pass >= at
        ]

    def close(self, batch: Batch) -> None:
        """A pass is done: those that sample their last token in it end, and who samples in a row is counted from here on."""
        self.last_call = batch.call
        self.launch(batch)
        if self.windows is not None:
            self.windows.advance(batch.call)
        batch.num_continued = batch.num_counted
        for row in batch.rows:
            if row.samples:
                progress = row.progress
                if progress.sampled_number == batch.number_before:
                    row.is_continued = True
                    batch.num_continued += 1
                progress.sampled_number = batch.number
                if progress.num_computed >= progress.last_token - 1:
                    batch.may_finish = True
                elif progress.is_running and not self._has_to_be_visited(row):
                    self._enter(progress, batch.call)
        if batch.num_continued:
            batch.num_back = batch.number - batch.number_before

    def num_passed_blocks(self, first_call: int, num_calls: int) -> int:
        """Blocks that windows of counted decodes give back in so many calls that only decode."""
        return self.windows.num_blocks(first_call, num_calls) if self.windows else 0

    def launch(self, batch: Batch) -> None:
        """Number a batch that does something; the counted ones end whose last token comes with it."""
        slot = self.slot(batch.call)
        if not batch.did_nothing:
            batch.number_before, batch.number = slot.last_number, self.num_launched
            slot.last_number = self.num_launched
            self.num_launched += 1
        if slot.decodes.ends.next_pass == self.round(batch.call):
            batch.ended = [self._progress[request] for request in slot.decodes.pop_next_end()]
            batch.may_finish = True
            if self.windows is not None:
                for progress in batch.ended:
                    self.windows.leave(progress.request, batch.call)

    def pass_over(self, first_call: int, num_calls: int) -> int:
        """Number the batches of so many calls that only decode; how many are not empty."""
        num_slots, before = self._num_slots, self.num_launched
        num_whole_rounds = max(0, num_calls // num_slots - 1)
        for slot in self.slots:
            if slot.decodes.count:
                self.num_launched += num_whole_rounds
        for call in range(first_call + num_whole_rounds * num_slots, first_call + num_calls):
            slot = self.slot(call)
            if slot.decodes.count:
                slot.last_number = self.num_launched
                self.num_launched += 1
        return self.num_launched - before

    def _has_to_be_visited(self, row: Row) -> bool:
        """Whether blocks that who samples in a row has yet to fill, or its windows to pass, hold what others may look for, or some are still to be stored."""
        progress = row.progress
        if self._keeps_states:
            return self._changes_states(progress)
        if self._caches_prefixes and progress.num_full < progress.request.num_shared_blocks:
            return True
        if self.windows is not None and not self._passes_steadily(row):
            return True
        return self._connector is not None and not self._connector.has_stored(progress)

    def _passes_steadily(self, row: Row) -> bool:
        """Whether windows pass blocks as those of who decodes in every call, a token in each batch in flight, and none that others may ask for."""
        kv, num_in_flight, progress = self._kv, self._num_in_flight, row.progress
        if row.num_tokens > 1 or progress.num_in_flight != num_in_flight or kv.may_pass_keys(progress.request):
            return False
        return kv.has_passed_all(progress.request, progress.num_computed - num_in_flight)

    def _changes_states(self, progress: Progress) -> bool:
        """Whether one has other states than the current one, or begins or fills a block with the next token."""
        states = progress.request.states
        assert states is not None, "it holds states"
        return len(states.numbers) > 1 or self._num_calls_to_fill(progress) in (1, self._block_size)

    def _num_calls_to_fill(self, progress: Progress) -> int:
        return self._block_size - progress.num_computed % self._block_size

    def _enter(self, progress: Progress, call: int) -> None:
        request = progress.request
        if self._keeps_states:
            num_calls = self._num_calls_to_fill(progress)
            if num_calls <= self._num_rounds(progress):
                self.pauses.add(request, call + num_calls)
        request.epoch = self.round(call) - progress.num_computed
        request.last_pass = request.epoch + progress.last_token - 1
        self.slot(call).decodes.enter(request)
        if self.windows is not None:
            self.windows.enter(request, call)
        progress.counted_call = call
        self.walked.remove(progress)

    def leave(self, progress: Progress) -> None:
        """A request no longer runs; it has finished, or was settled before."""
        if progress.counted_call < 0:
            self.walked.remove(progress)

    def finish(self, progress: Progress) -> None:
        """The batch with the last token of a counted one is back."""
        progress.num_tokens = progress.last_token
        progress.num_computed = progress.last_token - 1
        progress.num_in_flight = progress.num_samples_in_flight = progress.num_placeholders = 0
        self._hold(progress, progress.num_computed)

    def _hold(self, progress: Progress, num_known: int) -> None:
        """The blocks of what is computed; those full of the first tokens, which were known when they were computed, can be found."""
        size = self._block_size
        progress.num_blocks = -(-progress.num_computed // size)
        progress.num_slots = progress.num_blocks * size
        if self._caches_prefixes and num_known // size > progress.num_full:
            progress.num_full = num_known // size
            progress.next_full = (progress.num_full + 1) * size

    # -- when someone has to be looked at --------------------------------------------------------------------------

    def pause(self, call: int, in_flight: list[Batch]) -> None:
        """Count those no more who fill their blocks in that call."""
        while self.pauses.next_pass <= call:
            counted = [self._progress[request] for request in self.pauses.pop_next()]
            for progress in counted:
                self.slot(progress.counted_call).decodes.leave(progress.request)
            self._settle_all(counted, in_flight)
            for progress in counted:
                insort(self.walked, progress, key=admission_order)

    def settle(self, running: list[Progress], in_flight: list[Batch]) -> None:
        """Count nobody: say of each request, and of each batch in flight, what walking would have said."""
        counted = [progress for progress in running if progress.counted_call >= 0]
        self._settle_all(counted, in_flight)
        for batch in in_flight:
            batch.may_finish = True
            batch.ended = []
        for progress in counted:
            if self.windows is not None and progress.request.last_pass > self.last_call:
                self.windows.leave(progress.request, self.last_call)
        requests = [progress.request for progress in counted]
        for slot in self.slots:
            slot.decodes = slot.decodes.without_any(requests)
        self.walked = list(running)
        self.pauses = StepCalendar()

    def _settle_all(self, counted: list[Progress], in_flight: list[Batch]) -> None:
        """These are counted no more, nor in the batches that are in flight."""
        last_numbers = [slot.last_number for slot in self.slots]
        for batch in reversed(in_flight):
            if not batch.did_nothing:
                last_numbers[self.place(batch.call)] = batch.number_before
            rows = [self._row_of(progress, batch) for progress in counted if self._is_counted_in(progress, batch)]
            if rows:
                batch.rows += rows
                batch.rows.sort(key=_serial)
                batch.num_counted -= len(rows)
        last_collected = self.last_call - len(in_flight)
        for progress in counted:
            self._settle(progress, last_collected, last_numbers)

    def _is_counted_in(self, progress: Progress, batch: Batch) -> bool:
        num_calls = batch.call - progress.counted_call
        num_rounds = num_calls // self._num_slots
        return 0 < num_calls == num_rounds * self._num_slots and num_rounds <= self._num_rounds(progress)

    def _row_of(self, progress: Progress, batch: Batch) -> Row:
        row = Row()
        row.progress = progress
        row.serial = progress.request.serial
        row.num_tokens = 1
        num_rounds = (batch.call - progress.counted_call) // self._num_slots
        row.num_computed_before = progress.num_computed + num_rounds - 1
        row.attempt = progress.attempt
        row.samples = row.is_continued = True
        return row

    def _num_rounds(self, progress: Progress) -> int:
        """For how many rounds it is counted in all."""
        return progress.last_token - 1 - progress.num_computed

    def _settle(self, progress: Progress, last_collected: int, last_numbers: list[int]) -> None:
        call, num_slots = progress.counted_call, self._num_slots
        slot = self.slot(call)
        num_launched = min((self.last_call - call) // num_slots, self._num_rounds(progress))
        num_returned = min(max(0, last_collected - call) // num_slots, num_launched)
        progress.counted_call = -1
        progress.num_computed += num_launched
        progress.num_tokens += num_returned
        progress.num_in_flight += num_launched - num_returned
        progress.num_samples_in_flight += num_launched - num_returned
        if num_returned:
            progress.last_batch = last_numbers[self.place(call)]
        if self._is_async:
            progress.num_placeholders += num_launched - num_returned
            progress.eligible_call += num_launched * num_slots
        if num_launched:
            progress.granted_call += num_launched * num_slots
            progress.sampled_s = slot.sampled_s
            progress.sampled_number = slot.last_number
            self._hold(progress, progress.num_computed - self._is_async)


def _serial(row: Row) -> int:
    return row.serial
