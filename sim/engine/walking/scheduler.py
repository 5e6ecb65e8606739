"""One scheduling pass: who runs how many tokens in the next step. Knows no clock.

Mirrors vLLM's v1/core/sched/scheduler.py and async_scheduler.py as sim/engine/scheduler.py does, and walks every running
request as they do; so it also follows speculation, pipeline stages, adapters and KV connectors (0.32). Deliberate
differences: every request stops at its output length (no EOS), and encoders are not modelled.
"""

from sim.engine.common_readers import common_readers
from sim.engine.config import SchedulerConfig
from sim.engine.decodes import Decodes
from sim.engine.keyed_blocks import KeyedBlocks
from sim.engine.request import Request
from sim.engine.walking.admission import Admission
from sim.engine.walking.batch import Batch
from sim.engine.walking.calls_ahead import CallsAhead
from sim.engine.walking.connector import Connector
from sim.engine.walking.fair_admission import FairAdmission
from sim.engine.walking.modes import Modes
from sim.engine.walking.outputs import Outputs
from sim.engine.walking.progress import Progress
from sim.engine.walking.running import Running
from sim.engine.walking.state import State
from sim.engine.walking.static_batching import StaticBatching
from sim.engine.walking.swapping import SwapIn, SwappingState
from sim.engine.walking.throttle import Throttle
from sim.errors import EngineCrashError
from sim.steptime.protocol import shape_of

NONE_ACCEPTED = bytes(1)


class Scheduler:
    """Schedules over one state: running requests first, then the waiting; takes batches in as they come back."""

    def __init__(
        self, config: SchedulerConfig, modes: Modes, connector: Connector | None, num_keys: int, *, counts: bool
    ) -> None:
        self.swapping = SwappingState(config, modes, num_keys, modes.swap_space) if modes.swap_space else None
        self.state = self.swapping or State(config, modes, num_keys, connector, counts=counts)
        self._running = Running(self.state)
        self._admission = _admission(self.state, modes)
        self._outputs = Outputs(self.state)
        self._throttle = Throttle(self.state)
        self._connector = connector
        self._modes = modes
        self._nobody = Decodes(config.block_size, common_readers(config))
        self._token_budget = config.token_budget
        self._input_budget = config.engine.max_num_batched_tokens if modes.speculation else config.token_budget
        self._draft_slots = modes.speculation.num_draft_slots if modes.speculation else 0
        self._calls_between_decodes = modes.num_stages if config.engine.rules.paces_decodes else 1
        self._is_async = config.engine.async_scheduling

    def add_request(self, request: Request) -> None:
        """Queue a request; the next pass sees it."""
        acceptance = self._modes.acceptance
        accepted = acceptance.accepted(request) if acceptance else NONE_ACCEPTED
        proposed = acceptance.proposed(request) if acceptance else b""
        progress = Progress(request, accepted, proposed)
        if self._connector is not None:
            self._connector.added(progress)
        self.state.progress[request] = progress
        self.state.waiting.add(request)

    def schedule(self, *, is_throttled: bool = False, logs: bool = False) -> Batch:
        """Running requests first, in order of admission; then the waiting, unless someone had to be preempted."""
        state = self.state
        state.num_calls += 1
        state.has_told_finished = True
        state.slots.lowest_blank = state.slots.pool.num_blank
        state.slots.start_pass()
        if state.rotation is not None:
            state.rotation.pause(state.num_calls, state.in_flight)
        batch = Batch(state.num_calls, self._token_budget, self._input_budget, self._draft_slots, state.longest_chunk)
        batch.spare_rows = state.spare_rows
        if logs:
            batch.accepted, batch.delivered = {}, {}
        batch.is_throttled = is_throttled
        batch.defers_prefills = self._throttle.defers(is_throttled=is_throttled)
        self._running.schedule(batch)
        if not batch.preempted:
            self._admission.admit_waiting(batch)
        elif state.rules.asserts_batch_within_running and len(batch.rows) > len(state.running):
            raise EngineCrashError(
                f"the engine of vLLM before 0.10.2 crashes in this run, by an assertion: with scheduling_policy priority it"
                f" preempted a request that it had already scheduled, and {len(batch.rows)} in a batch are more than"
                f" the {len(state.running)} that run; give more KV blocks, or choose fcfs or a newer vllm_version."
            )
        self._throttle.note(batch)
        self._advance(batch)
        if self._connector is not None:
            self._tell(self._connector, batch)
        if state.rotation is not None:
            state.rotation.close(batch)
        self._outputs.launched(batch)
        return batch

    def _advance(self, batch: Batch) -> None:
        """Advance every granted request at once: vLLM counts tokens when they are scheduled, not when they return."""
        speculation, is_async = self._modes.speculation, self._is_async
        num_drafts_next = speculation.num_drafts_after(len(batch.rows)) if speculation else 0
        batch.num_drafts_next = num_drafts_next
        next_call = batch.call + self._calls_between_decodes
        num_decodes = num_sampled = batch.num_counted
        decodes, at = self._counted(batch)
        decode_context_tokens = num_drafts = 0
        others: list[KeyedBlocks] = []
        chunks: list[tuple[int, int]] = []
        for row in batch.rows:
            progress, num_tokens = row.progress, row.num_tokens
            progress.num_in_flight += num_tokens
            if row.is_ghost:
                progress.num_computed += num_tokens
            else:
                row.num_computed_before = progress.num_computed
                progress.num_computed += num_tokens
                num_beyond = progress.num_computed - progress.num_tokens - progress.num_placeholders
                if num_beyond >= 0:
                    row.samples = True
                    progress.is_prefilling = False
                    num_sampled += 1
                    progress.num_samples_in_flight += 1
                    row.num_drafts = row.num_padded or min(progress.num_drafts, num_beyond)
                    progress.num_drafts = 0
                    if is_async:
                        progress.num_placeholders += 1 + row.num_drafts
                        progress.num_drafts = num_drafts_next
                        progress.eligible_call = next_call
                else:
                    progress.num_drafts = 0
            if num_tokens == 1 + row.num_drafts:
                num_decodes += 1
                num_drafts += row.num_drafts
                decode_context_tokens += row.num_computed_before + num_tokens
                if progress.request.keyed is not None:
                    others.append(progress.request.keyed)
            else:
                chunks.append((num_tokens, row.num_computed_before))
        if not batch.is_empty:
            decode_context_tokens += decodes.context_sum_beside(others, num_decodes, at)
            batch.shape = shape_of(num_decodes, decode_context_tokens, tuple(chunks), num_sampled, num_drafts)
        batch.num_running, batch.num_waiting = self.state.num_running, self.state.num_waiting
        batch.num_free_blocks = self.state.num_free_blocks

    def _counted(self, batch: Batch) -> tuple[Decodes, int]:
        """The decodes that are counted and not visited, and their round."""
        rotation = self.state.rotation
        if rotation is None:
            return self._nobody, 0
        return rotation.slot(batch.call).decodes, rotation.round(batch.call)

    def _tell(self, connector: Connector, batch: Batch) -> None:
        for row in batch.rows:
            connector.computes(row.progress, row.num_computed_before + row.num_tokens)
        connector.close_pass(self.state.slots.drain_kept_states())

    # -- calls that only decode, many at once ----------------------------------------------------------------------

    @property
    def only_decodes(self) -> bool:
        """Whether calls do nothing but decode, all that run being counted, before a request comes or finishes or a transfer is over."""
        adapters, connector = self.state.adapters, self._connector
        if connector is not None and not connector.lets_decode:
            return False
        if adapters is not None and not adapters.has_all(self.state.next_decodes):
            return False
        return self._admission.admits_nobody

    @property
    def num_blocks_to_admit(self) -> int:
        """So many free blocks may let somebody in before a request comes or finishes or a transfer is over."""
        return self._admission.num_blocks_to_admit

    def make_calls(self, ahead: CallsAhead) -> None:
        """Decide what these calls do."""
        state, rotation = self.state, self.state.rotation
        assert rotation is not None, "an engine with stages"
        state.num_calls += ahead.num_calls
        state.has_told_finished = True
        rotation.last_call = state.num_calls
        num_taken, windows = ahead.num_free - ahead.num_left, rotation.windows
        if windows is not None:
            num_passed = windows.num_blocks(ahead.first_call, ahead.num_calls)
            state.slots.pool.release_passed(num_passed)  # first, as later calls may take what earlier ones give back
            windows.advance(state.num_calls)
            num_taken += num_passed
        if num_taken:
            state.slots.pool.take(num_taken)
        if state.adapters is not None:
            state.adapters.load_s(state.next_decodes)

    def launch_calls(self, ahead: CallsAhead, num_back: int) -> None:
        """Put the batches of all but the first so many on their way, which may bring last tokens; these are back and finished nobody."""
        state, rotation = self.state, self.state.rotation
        assert rotation is not None, "an engine with stages"
        if num_back > 0:
            self._outputs.pass_over(rotation.pass_over(ahead.first_call, num_back))
        launched = ahead.latest.following
        for number in range(ahead.num_calls - ahead.num_before - 1, ahead.num_calls):
            start_s, end_s = launched.start_s, launched.end_s
            launched = launched.following
            if number < max(0, num_back):
                continue
            batch = state.spare_batches.pop() if state.spare_batches else Batch(0, 0, 0, 0, 0)
            call, num_decodes = ahead.first_call + number, ahead.num_decodes(number)
            batch.decode_alone(call, num_decodes, start_s, end_s)
            rotation.launch(batch)
            self._outputs.launched(batch)
            state.in_flight.append(batch)

    # -- as batches and transfers come back ------------------------------------------------------------------------

    def take_in(self, batch: Batch, now_s: float) -> list[Progress]:
        """A batch is back: the requests that it finishes."""
        return self._outputs.take_in(batch, now_s)

    def pass_over(self, batch: Batch) -> None:
        """A batch is back that has no rows and finishes nobody."""
        self._outputs.pass_over(int(not batch.did_nothing))
        self.reuse(batch)

    def reuse(self, batch: Batch) -> None:
        """A batch that has no rows is back, and done with."""
        if batch.ended:
            batch.ended = []
        self.state.spare_batches.append(batch)

    def abort(self, request: Request) -> None:
        """A request leaves at once, wherever it stands; tokens in flight for it are dropped, and what is loaded still comes."""
        progress = self.state.progress[request]
        if self._connector is not None:
            self._outputs.give_passed_back(self._connector, progress)
            self._connector.aborted(progress)
        self._outputs.leave(progress)
        if not progress.is_loading:
            self._outputs.free(progress)

    def lose_all(self) -> None:
        """The device is gone, and with it what it held for requests that have left."""
        transfers = self._connector.lose_all() if self._connector is not None else []
        for progress in (*(transfer.progress for transfer in transfers), *self._outputs.lose_all()):
            self.state.slots.free(progress)

    def loaded(self, progress: Progress) -> None:
        """What came from elsewhere is here; the last known token is computed in any case, to sample from it."""
        self._no_longer_loads(progress)
        if progress.is_finished:
            self.state.slots.free(progress)
            return
        progress.num_computed = min(progress.num_loaded, progress.num_tokens - 1)

    def load_failed(self, progress: Progress) -> bool:
        """The request is computed here, its blocks given back when it is looked at next; or it ends, which is told."""
        self._no_longer_loads(progress)
        progress.num_loaded = 0
        ends = not (progress.is_finished or (self._connector is not None and self._connector.recomputes_failed))
        if ends:
            self._outputs.leave(progress)
        if progress.is_finished:
            self.state.slots.free(progress)
        return ends

    def _no_longer_loads(self, progress: Progress) -> None:
        progress.is_loading = False
        self.state.loading.remove(progress)

    def sent(self, progress: Progress) -> None:
        """What a request that has ended held until it was sent comes free."""
        self.state.slots.free(progress)


def _admission(state: State, modes: Modes) -> Admission:
    if modes.batches_statically:
        return StaticBatching(state)
    if modes.shares_fairly:
        return FairAdmission(state)
    return SwapIn(state) if modes.swap_space else Admission(state)
