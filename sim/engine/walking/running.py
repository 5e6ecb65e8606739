"""Which of the running requests get what in a pass, and who has to make room."""

from sim.engine.request import Request
from sim.engine.walking.batch import Batch
from sim.engine.walking.progress import Progress
from sim.engine.walking.rotation import Rotation
from sim.engine.walking.state import State
from sim.engine.windows import WindowFrees


def short_of_the_end(progress: Progress, num_computed: int, num_tokens: int, ahead: int) -> int:
    """A chunk's tokens, fewer where it would end less than `ahead` before the known tokens' end, which some drafters need whole."""
    left = progress.num_tokens - num_computed - num_tokens
    if 0 < left < ahead:
        return max(0, num_tokens - (ahead - left))
    return num_tokens


class Running:
    """Schedules the running requests one by one."""

    def __init__(self, state: State) -> None:
        speculation = state.modes.speculation
        self._state = state
        self._slots = state.slots
        self._stops_at_last_token = state.rules.stops_at_last_token
        self._last_position = state.config.max_model_len - 1
        self._ahead = speculation.num_prefill_lookahead if speculation else 0
        self._ends_at_own_preemption = state.policy.ends_scan_at_own_preemption
        self._refunds = state.rules.refunds_preempted_tokens or state.modes.swap_space is not None
        self._steps_back = state.rules.steps_back
        self._ends_chunks_for_states = state.config.keeps_states

    def schedule(self, batch: Batch) -> None:
        """Grant all that is asked for, or else in order of admission, preempting where blocks run out."""
        rotation = self._state.rotation
        if rotation is not None:
            if self._grant_all(rotation, batch):
                return
            self._state.settle()
        self._grant_in_order(batch)

    def _grant_all(self, rotation: Rotation, batch: Batch) -> bool:
        """Grant every running request all of it; False, with nothing changed, where tokens or blocks may be too few."""
        slot, pool = rotation.slot(batch.call), self._slots.pool
        num_counted = slot.decodes.count
        num_blocks = slot.decodes.blocks_begun(rotation.round(batch.call), 1) * self._slots.num_groups
        budget = batch.budget - num_counted
        if budget < 0:
            return False
        grants: list[tuple[Progress, int]] = []
        missing = num_blocks
        for progress in rotation.walked:
            wanted = self._next_tokens(progress, batch)
            if wanted > budget:
                if progress is not self._state.running[-1]:
                    return False
                wanted = self._slots.chunk(progress, progress.num_computed, budget)
            if wanted:
                missing += self._slots.num_missing(progress, wanted)
                budget -= wanted
                grants.append((progress, wanted))
        if missing > pool.num_free:
            return False
        if num_blocks:
            self._slots.take(num_blocks)
        if num_counted:
            batch.count(num_counted, slot.sampled_s)
        self._grow_all(grants, batch, rotation.windows)
        return True

    def _grow_all(self, grants: list[tuple[Progress, int]], batch: Batch, windows: WindowFrees | None) -> None:
        """Give these their blocks; those that windows of counted ones pass come free in between, all in order of admission."""
        pool, num_passed = self._slots.pool, 0
        for progress, wanted in grants:
            if windows is not None:
                num_earlier = windows.num_blocks_before(batch.call, progress.request)
                pool.release_passed(num_earlier - num_passed)
                num_passed = num_earlier
            batch.grant(progress, wanted, self._slots.grow(progress, wanted))
        if windows is not None:
            pool.release_passed(windows.num_blocks(batch.call, 1) - num_passed)

    def _grant_in_order(self, batch: Batch) -> None:
        """One after the other, as vLLM does."""
        running = self._state.running
        index = 0
        while index < len(running) and batch.budget > 0:
            progress = running[index]
            num_tokens = self._next_tokens(progress, batch)
            if num_tokens == 0:
                index += 1
                continue
            num_new_blocks = self._slots.grow(progress, num_tokens)
            while num_new_blocks < 0:
                victim = self._victim()
                if self._state.defers_frees and victim.num_in_flight:
                    return
                index -= self._moves_up(victim, index, batch)
                self._preempt(victim, batch)
                if victim is progress:
                    break
                num_new_blocks = self._slots.grow(progress, num_tokens)
            if num_new_blocks < 0:
                if self._ends_at_own_preemption:
                    return
                continue
            if progress.is_prefilling:
                batch.has_unfinished_prefill = True
            batch.grant(progress, num_tokens, num_new_blocks)
            index += 1

    def _next_tokens(self, progress: Progress, batch: Batch) -> int:
        computed, placeholders = progress.num_computed, progress.num_placeholders
        if batch.call < progress.eligible_call:
            return 0
        if placeholders and self._stops_at_last_token and computed + 2 - placeholders >= progress.last_token:
            return 0
        if batch.defers_prefills and progress.is_prefilling:
            return 0
        num_tokens = progress.num_tokens + progress.num_drafts + placeholders - computed
        if num_tokens > 1:
            num_tokens = min(num_tokens, batch.most_tokens)
        num_tokens = max(0, min(num_tokens, self._last_position - computed))
        if self._ends_chunks_for_states:
            num_tokens = self._slots.chunk(progress, computed, num_tokens)
        return num_tokens if self._ahead < 2 else short_of_the_end(progress, computed, num_tokens, self._ahead)

    def _victim(self) -> Progress:
        running = self._state.running
        if self._state.is_fcfs:
            return running[-1]
        line: list[Request] = [progress.request for progress in running]
        return running[self._state.policy.victims_place(line)]

    def _moves_up(self, victim: Progress, index: int, batch: Batch) -> int:
        """1 where the scan follows the requests behind a victim as they move up; 0 where it passes over the next of them."""
        if self._steps_back == "always":
            return int(self._state.running.index(victim) < index)
        return int(self._steps_back == "scheduled" and victim.granted_call == batch.call)

    def _preempt(self, victim: Progress, batch: Batch) -> None:
        """Take a request's blocks. What it was granted in this pass is refunded, or else runs on and counts as computed."""
        state = self._state
        if state.connector is not None:
            state.connector.preempted(victim)
        if victim.granted_call == batch.call:
            if self._refunds:
                batch.refund(victim)
            else:
                batch.make_ghost(victim)
        state.preempt(victim)
        batch.preempted.append(victim.request)
