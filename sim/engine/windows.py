"""Counts, for all decodes together, the blocks that their attention windows give back.

A window of `w` tokens has passed a block when the next token attends to nothing in it; the block is then given back.
A decode in steady progress has processed `step - epoch - n` tokens before pass `step`, where batch `step` is one of `n` in
flight. So each of its windows passes a block in every pass that is `begin` modulo the block size and comes after it:

    begin  =  epoch + n - 1 + window

Blocks whose contents other requests may ask for are counted as well, unless another request holds them too: those do not
come free.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from sim.engine.config import SchedulerConfig
from sim.engine.kv_cache_manager import KVCacheManager
from sim.engine.passed_blocks import PassedBlock, PassedBlocks
from sim.engine.prefix_cache import Extent
from sim.engine.progress import num_processed_tokens
from sim.engine.request import Request, RequestStatus, admission_order
from sim.engine.step_calendar import StepCalendar, occurrences


class Windows:
    """The windows of all running requests: those of decodes in steady progress counted, all others one by one.

    A decode settles into steady progress when its first token, or the first after it starved, has come back. While it
    holds keyed blocks that a window will pass, `_keyed` has it in the next pass in which one does; `_common` has those that
    hold such blocks with others, who are not counted.
    """

    def __init__(self, config: SchedulerConfig, kv: KVCacheManager) -> None:
        self._kv = kv
        self._num_in_flight = config.num_batches_in_flight
        self._settling: dict[Request, None] = {}
        self._settled = WindowFrees(config.passing_delays, kv.pool.passed)
        self._keyed = StepCalendar()
        self._next_keyed: dict[Request, int] = {}
        self._common = StepCalendar()

    def num_counted_passes(self, step: int) -> int:
        """For how many passes from `step` on the counts hold for all decodes; 0 if some are not counted."""
        return 0 if self._settling else min(self._settled.next_begin + 1, self._common.next_pass) - step

    def enter(self, request: Request) -> None:
        """The request decodes from the next pass on."""
        self._settling[request] = None

    def leave(self, request: Request, step: int) -> None:
        """A decode leaves after pass `step`, its last."""
        if request in self._settling:
            del self._settling[request]
        else:
            self._uncount(request, step)

    def _uncount(self, request: Request, step: int) -> None:
        if request in self._next_keyed:
            self._keyed.remove(request, self._next_keyed.pop(request))
        elif self._kv.may_pass_keys(request):
            self._common.remove(request, self._settled.next_passing(request, step))
            return
        self._settled.leave(request, step)

    def falters(self, request: Request, step: int) -> None:
        """A running request is preempted in pass `step`, or gets no token in it: a decode is no longer counted."""
        if request.status is RequestStatus.DECODING and request not in self._settling:
            self._uncount(request, step - 1)
            self._settling[request] = None

    def is_preempted(self, request: Request, step: int) -> None:
        """A running request is preempted in pass `step`."""
        self.falters(request, step)
        self._settling.pop(request, None)

    def free_passed(self, step: int, num_collected: int, computing: Iterable[Request]) -> None:
        """Before pass `step`, give back the blocks that windows have passed; `computing` are the prefills that run in it."""
        self.take_up_common(step)
        keyed = self._pass_keyed(step, 1)
        num_freed = 0
        for request in self._in_order(computing):
            num_processed = num_processed_tokens(request, step, num_collected)
            if self._kv.passes_blocks(request, num_processed):
                num_earlier = self._settled.num_blocks_before(step, request)
                self._free_counted(num_freed, num_earlier, keyed)
                num_freed = num_earlier
                self._kv.free_passed_windows(request, num_processed)
        self._free_counted(num_freed, self._settled.num_blocks(step, 1), keyed)

    def _in_order(self, computing: Iterable[Request]) -> list[Request]:
        """The requests whose windows have to be looked at."""
        requests = [*computing, *self._settling]
        if len(requests) > 1:
            requests.sort(key=admission_order)
        return requests

    def _free_counted(self, first: int, end: int, keyed: Sequence[tuple[int, Extent]]) -> None:
        """Blocks in some places among those that counted decodes pass next; `keyed` are the copies among all."""
        pool = self._kv.pool
        for place, copy in keyed:
            if first <= place < end:
                pool.release_passed(place - first)
                pool.passed.pass_by_name()
                pool.release_passed_copy(copy)
                first = place + 1
        pool.release_passed(end - first)

    def _pass_keyed(self, step: int, num_passes: int) -> list[tuple[int, Extent]]:
        """In order, places and copies of the keyed blocks that counted decodes pass in consecutive passes; they hold them no more."""
        keyed: list[tuple[int, Extent]] = []
        num_before, first = 0, step
        while self._keyed.next_pass < step + num_passes:
            passing = max(step, self._keyed.next_pass)  # of those before, all have been removed
            num_before += self._settled.num_blocks(first, passing - first)
            first = passing
            for request in self._keyed.pop_next():
                for place, group, number in self._settled.passed_by(request, passing):
                    copy = self._kv.pass_key(request, group, number)
                    if copy is not None:
                        keyed.append((num_before + place, copy))
                self._await_keyed(request, passing)
        keyed.sort(key=_place)
        return keyed

    def _await_keyed(self, request: Request, step: int) -> None:
        """After pass `step`, note when a window of a counted decode next passes a keyed block, if ever."""
        if self._kv.may_pass_keys(request):
            self._next_keyed[request] = self._settled.next_passing(request, step)
            self._keyed.add(request, self._next_keyed[request])
        else:
            self._next_keyed.pop(request, None)

    def num_blocks(self, step: int, num_passes: int) -> int:
        """Blocks passed in consecutive passes by decodes in steady progress, while they stay counted as they are."""
        return self._settled.num_blocks(step, num_passes)

    @property
    def due(self) -> list[int]:
        """Blocks that windows of decodes in steady progress pass in a pass, by the pass's number modulo the block size."""
        return self._settled.due

    def pass_steadily(self, step: int, num_passes: int) -> None:
        """Do `num_passes` passes from `step` on, in which all decodes are in steady progress."""
        keyed = self._pass_keyed(step, num_passes)
        self._free_counted(0, self._settled.num_blocks(step, num_passes), keyed)
        self._settled.advance(step + num_passes - 1)

    def take_up_common(self, step: int) -> None:
        """Look at those who may give back a block in this pass that others hold as well."""
        while self._common.next_pass <= step:
            self._settling.update(dict.fromkeys(self._common.pop_next()))

    def free_passed_of(self, request: Request, step: int, num_collected: int) -> None:
        """In its turn in pass `step`, give back the blocks that windows of a running request have passed.

        This is for passes in which decodes may starve or be preempted: all that pass a block are visited then, and counted
        anew afterwards.
        """
        if request.status is RequestStatus.DECODING and request not in self._settling:
            if self._settled.next_passing(request, step - 1) > step:
                return
            self.falters(request, step)
        self._kv.free_passed_windows(request, num_processed_tokens(request, step, num_collected))

    def advance(self, step: int) -> None:
        """After pass `step`: count the decodes that have come into steady progress."""
        self._settled.advance(step)
        if self._kv.has_common_window_blocks:
            self._kv.has_common_window_blocks = False
            self._uncount_common(step)
        for request in list(self._settling):
            if step >= max(request.first_decode_pass, request.starved_pass + 1) + self._num_in_flight - 1:
                del self._settling[request]
                self._count(request, step)

    def _uncount_common(self, step: int) -> None:
        """Others have taken hold of blocks that windows have yet to pass: they will not come free as counted."""
        for request in [request for request in self._next_keyed if not self._kv.passes_keys_alone(request)]:
            self._uncount(request, step)
            self._count(request, step)

    def _count(self, request: Request, step: int) -> None:
        """Count a decode from the pass after `step` on, unless others hold what its windows will pass."""
        if self._kv.may_pass_keys(request) and not self._kv.passes_keys_alone(request):
            self._common.add(request, self._settled.next_passing(request, step))
        else:
            self._settled.enter(request, step)
            self._await_keyed(request, step)


def _place(keyed: tuple[int, Extent]) -> int:
    return keyed[0]


class WindowFrees:
    """Decodes in steady progress, by the passes in which their windows pass blocks.

    Invariants, after pass `s`: `due[r]` blocks are passed in each later pass that is `r` modulo the block size, until
    `next_begin`, one for each window of `passed.by_residue[r]`; requests of which a window begins to pass blocks only after
    a later pass wait for it in `_beginning`.
    """

    def __init__(self, delays: Sequence[int | None], passed: PassedBlocks) -> None:
        self._delays = [(group, delay) for group, delay in enumerate(delays) if delay is not None]
        self._passed = passed
        self._block_size = len(passed.by_residue)
        self._beginning = StepCalendar()
        self.due = [0] * self._block_size

    @property
    def next_begin(self) -> int:
        """The first pass after which a window begins to pass blocks."""
        return self._beginning.next_pass

    def enter(self, request: Request, step: int) -> None:
        """Count a decode from the pass after `step` on."""
        for group, delay in self._delays:
            begin = request.epoch + delay
            if begin <= step:
                self._begin(request, group, begin, step)
            else:
                self._beginning.add(request, begin)

    def _begin(self, request: Request, group: int, begin: int, step: int) -> None:
        self._passed.begin(self._passed.window(request.serial, group), begin, step + 1)
        self.due[begin % self._block_size] += 1

    def leave(self, request: Request, step: int) -> None:
        """Stop counting a decode after pass `step`; set its `passed_blocks` to the blocks passed by then."""
        passed_blocks = [0] * self._passed.num_groups
        for group, delay in self._delays:
            begin = request.epoch + delay
            passed_blocks[group] = max(0, step - begin) // self._block_size
            if begin in self._beginning:
                self._beginning.remove(request, begin)
            else:
                self._passed.end(self._passed.window(request.serial, group), begin, step + 1)
                self.due[begin % self._block_size] -= 1
        request.passed_blocks = passed_blocks

    def advance(self, step: int) -> None:
        """After pass `step`: count the windows that pass blocks from now on."""
        self._passed.next_step = step + 1
        while (begin := self.next_begin) <= step:
            for request in dict.fromkeys(self._beginning.pop_next()):
                for group, delay in self._delays:
                    if request.epoch + delay == begin:
                        self._begin(request, group, begin, step)

    def num_blocks(self, first: int, num_passes: int) -> int:
        """Blocks passed in consecutive passes, none after `next_begin`."""
        return occurrences(self.due, first, num_passes)

    def num_blocks_before(self, step: int, request: Request, group: int = 0) -> int:
        """Blocks passed in pass `step` by decodes that were admitted before a request, and by its own windows of earlier groups."""
        windows = self._passed.by_residue[step % self._block_size]
        window = self._passed.window(request.serial, group)
        return len(windows) if not windows or windows[-1] < window else bisect_left(windows, window)

    def passed_by(self, request: Request, step: int) -> list[PassedBlock]:
        """Blocks of a request that are passed in pass `step`, and where they stand among all that are."""
        found = []
        for group, delay in self._delays:
            number, rest = divmod(step - request.epoch - delay, self._block_size)
            if rest == 0 and number > 0:
                found.append(PassedBlock(self.num_blocks_before(step, request, group), group, number - 1))
        return found

    def next_passing(self, request: Request, step: int) -> int:
        """The first pass after `step` in which any window of a request in steady progress passes a block."""
        size = self._block_size
        begins = [request.epoch + delay for _, delay in self._delays]
        return min(begin + size * (max(0, step - begin) // size + 1) for begin in begins)
