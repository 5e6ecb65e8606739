"""One scheduling pass: which requests run in the next step, and how many tokens of each. It has no clock.

Mirrors vLLM's v1/core/sched/scheduler.py and async_scheduler.py, from 0.8.5 to 0.33 by `config.engine.rules`; decoding
requests are counted, not visited, unless tokens or blocks are short. Deliberate differences: every request stops at its output length (no EOS), and speculation, LoRA, encoders
and KV connectors are not modelled.
"""

from sim.engine.admission import Admission
from sim.engine.batch import Batch
from sim.engine.block_hashing import BlockHashing
from sim.engine.config import SchedulerConfig
from sim.engine.leap_planner import LeapPlanner
from sim.engine.preemption import Preemption
from sim.engine.request import Request, admission_order
from sim.engine.scheduler_state import SchedulerState


class Scheduler:
    """The scheduler of one engine: `state` holds its requests and blocks, the other parts decide over it."""

    def __init__(self, config: SchedulerConfig, num_keys: int = 0) -> None:
        self.state = SchedulerState(config, num_keys)
        self._block_hashing = BlockHashing(self.state)
        self.leap_planner = LeapPlanner(self.state, self._block_hashing)
        self._admission = Admission(self.state, self._block_hashing)
        self._preemption = Preemption(self.state, self._block_hashing)
        self._token_budget = config.token_budget
        self._block_size = config.block_size

    def add_request(self, request: Request) -> None:
        """Put a request into the queue; the next pass considers it."""
        self._admission.add(request)

    def schedule(self, step: int) -> Batch:
        """Do pass number `step`: running requests first, in order of admission, then waiting ones, unless one was preempted."""
        state = self.state
        batch = Batch(step, self._token_budget, state.longest_chunk)
        if state.windows:
            self._block_hashing.catch_up(
                step, before=0
            )  # before a window gives a block back, its content must be registered
        if not self._grant_all_running(batch):
            self._preemption.schedule_running(batch)
        if state.waiting and not batch.preempted:
            self._admission.admit_waiting(batch)
        batch.close(state.decodes)
        self._advance(batch)
        return batch

    def num_cached_blocks(self, request: Request, step: int, *, is_scheduled: bool) -> int:
        """Leading blocks that a request could use if it were admitted after pass `step`, or before it unless that `is_scheduled`."""
        self._block_hashing.catch_up(step, None if is_scheduled else 0)
        return self.state.kv.find_prefix(request).num_blocks

    def _grant_all_running(self, batch: Batch) -> bool:
        """Schedule every running request in full; False, with nothing changed, if tokens or blocks may be too few for that."""
        state, kv = self.state, self.state.kv
        num_decodes = state.decodes.count
        budget = batch.budget - num_decodes
        if budget < 0 or (state.wastes_a_decode and state.ended):
            return False
        blocks = state.decodes.block_boundaries[batch.step % self._block_size] * kv.num_groups
        chunks = []
        for request in state.prefills:
            wanted = request.num_tokens - request.num_computed_tokens
            wanted = min(wanted, batch.longest_chunk)
            if wanted > budget:
                if len(state.prefills) > 1 or next(reversed(state.running)) is not request:
                    return False
                wanted = budget
            if wanted:
                new = kv.new_blocks(request.num_computed_tokens, wanted)
                chunks.append((request, wanted, new))
                budget -= wanted
                blocks += new
        if blocks > kv.pool.num_free:
            return False
        if blocks:
            kv.pool.take(blocks)
        if state.windows:
            state.windows.free_passed(batch.step, state.num_collected, [request for request, *_ in chunks])
        batch.budget = budget
        batch.num_decodes = num_decodes
        for request, wanted, new in chunks:
            self._block_hashing.add_chunk(batch, request, wanted, new)
        return True

    def _advance(self, batch: Batch) -> None:
        """Prepare the next pass: decodes that have sampled their last token end, finished prefills become decodes."""
        state, step = self.state, batch.step
        if state.decodes.ends.next_pass == step:
            state.end_decodes()
        for request in batch.starved:
            state.decodes.enter(request)
        for chunk in batch.chunks:
            if chunk.samples:
                state.finish_prefill(chunk.request, step)
        ended = state.ended.get(step)
        if ended and len(ended) > 1:
            ended.sort(key=admission_order)
        if state.windows:
            state.windows.advance(step)
