"""What batches bring back: tokens, rejected drafts, requests that are over and their blocks."""

from sim.engine.request import RequestStatus
from sim.engine.walking.batch import Batch, Row
from sim.engine.walking.connector import Connector
from sim.engine.walking.progress import Progress, admission_order
from sim.engine.walking.rotation import Rotation
from sim.engine.walking.state import State


class Outputs:
    """Takes batches in, in order of launch; knows whose blocks wait for a later batch."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._slots = state.slots
        self._rotation = state.rotation
        self._is_async = state.is_async
        self._forgets_trimmed = state.rules.forgets_trimmed_tokens
        self._keeps_verified = state.rules.keeps_verified_blocks and state.modes.speculation is not None
        self._in_flight: list[Batch] = []
        self._unfreed: list[tuple[Batch, Progress]] = []
        self._num_taken_in = 0

    def launched(self, batch: Batch) -> None:
        """A batch is on its way."""
        if self._state.defers_frees and not batch.is_empty:
            self._in_flight.append(batch)

    def take_in(self, batch: Batch, now_s: float) -> list[Progress]:
        """The requests that are finished by a batch, which is back."""
        if self._in_flight:
            self._free_deferred(batch)
        finished: list[Progress] = []
        drops_preempted = self._state.drops_preempted_outputs
        number, rotation = self._num_taken_in, self._rotation
        batch.number = number
        for row in batch.rows:
            progress = row.progress
            progress.num_in_flight -= row.num_tokens
            if progress.num_stale and row.attempt != progress.attempt:
                progress.num_stale -= row.num_tokens
            if not row.samples:
                continue
            progress.num_samples_in_flight -= 1
            if progress.is_finished or (drops_preempted and row.attempt != progress.attempt):
                batch.num_dropped += row.is_continued
                continue
            if not row.is_continued:
                self._note_gap(progress, batch, number)
            progress.last_batch = number
            self._take_in_row(row, batch)
            if progress.num_tokens >= progress.last_token:
                finished.append(progress)
        self._num_taken_in += not batch.did_nothing
        if rotation is not None:
            self._finish_counted(rotation, batch, finished)
        self._state.spare_rows += batch.rows
        for progress in finished:
            self._finish(progress, now_s)
        return finished

    def _note_gap(self, progress: Progress, batch: Batch, number: int) -> None:
        """The batch of that number brings a token: how many batches after the last one."""
        if progress.last_batch == number - 1 and self._rotation is None:
            batch.num_continued += 1
        elif progress.last_batch < 0:
            progress.request.time_first_token(batch.end_s)
        else:
            batch.late.append(progress.last_batch)

    def _finish_counted(self, rotation: Rotation, batch: Batch, finished: list[Progress]) -> None:
        """Those without a row whose last tokens a batch brings; all in order of admission."""
        for progress in batch.ended:
            rotation.finish(progress)
            finished.append(progress)
        if batch.ended and len(finished) > 1:
            finished.sort(key=admission_order)

    def pass_over(self, count: int) -> None:
        """So many batches are back that finish nobody and have no rows."""
        self._num_taken_in += count

    def _take_in_row(self, row: Row, batch: Batch) -> None:
        """Append the sampled token and the accepted drafts; forget that the rejected ones were computed."""
        progress = row.progress
        num_accepted = 0
        if row.num_drafts:
            if not row.num_padded:
                num_accepted = _verified(progress, row.num_drafts)
                self._state.verified[num_accepted] += 1
                batch.num_verified += row.num_drafts
                batch.num_accepted += num_accepted
            if batch.accepted is not None:
                batch.accepted[progress.request.request_id] = num_accepted
        num_delivered = min(num_accepted + 1, progress.last_token - progress.num_tokens)
        progress.num_tokens += num_delivered
        if num_delivered != 1 and batch.delivered is not None:
            batch.delivered[progress.request.request_id] = num_delivered
        if row.attempt != progress.attempt:
            progress.request.num_sampled_tokens = progress.num_tokens - progress.num_prompt
            return
        num_kept = num_delivered - 1 if self._forgets_trimmed else num_accepted
        num_rejected = row.num_drafts - num_kept
        progress.num_computed -= num_rejected
        if self._is_async:
            progress.num_placeholders -= num_rejected + num_delivered
            num_returned = progress.num_computed - progress.num_placeholders
            if num_returned >= progress.next_full:
                self._slots.keep(progress, num_returned)
            return
        if self._keeps_verified and progress.num_computed >= progress.next_full:
            self._slots.keep(progress, min(progress.num_computed, progress.num_tokens - 1))
        if (batch.num_drafts_next or progress.proposed) and progress.num_tokens < progress.last_token:
            progress.num_drafts = _proposed(progress, batch.num_drafts_next)

    def _finish(self, progress: Progress, now_s: float) -> None:
        connector = self._state.connector
        self.leave(progress)
        if connector is not None:
            self.give_passed_back(connector, progress)
        if connector is None or not connector.finished(progress, now_s):
            self.free(progress)

    def give_passed_back(self, connector: Connector, progress: Progress) -> None:
        """Before a connector hears of a request's end, which gets no blocks that windows have passed."""
        connector.ending(progress)
        self._slots.free_passed_windows(progress)

    def leave(self, progress: Progress) -> None:
        """The request is no longer one of the engine's; its blocks still are."""
        state, request = self._state, progress.request
        if progress.is_running:
            state.stop_running(progress)
        elif request in state.waiting:
            state.waiting.remove_all([request])
        else:
            state.holding.remove_all([request])
        if progress in state.to_prefill:
            state.to_prefill.remove(progress)
        progress.is_finished = True
        request.status = RequestStatus.FINISHED
        request.num_sampled_tokens = progress.num_tokens - progress.num_prompt
        del state.progress[request]
        state.has_told_finished = False

    def free(self, progress: Progress) -> None:
        """Give back the blocks of one that has left, once no batch in flight may write to them."""
        if self._state.defers_frees and progress.num_in_flight:
            self._slots.forget_kept_states(progress)
            self._unfreed.append((self._in_flight[-1], progress))
        else:
            self._slots.free(progress)

    def lose_all(self) -> list[Progress]:
        """Those whose blocks wait for a batch that will not come back."""
        unfreed, self._unfreed = [progress for _, progress in self._unfreed], []
        return unfreed

    def _free_deferred(self, batch: Batch) -> None:
        """Blocks that this batch was the last to write to."""
        kept = []
        for last, progress in self._unfreed:
            if last is batch:
                self._slots.free(progress)
            else:
                kept.append((last, progress))
        self._unfreed = kept
        if self._in_flight[0] is batch:
            self._in_flight.pop(0)


def _verified(progress: Progress, num_drafts: int) -> int:
    accepted = progress.accepted
    number = progress.num_verifications
    progress.num_verifications = number + 1
    return min(accepted[number % len(accepted)], num_drafts)


def _proposed(progress: Progress, most: int) -> int:
    proposed = progress.proposed
    if not proposed:
        return most
    number = progress.num_proposals
    progress.num_proposals = number + 1
    return min(proposed[number % len(proposed)], most)
