"""The passes in which tokens or blocks may be too few: the running requests are visited one by one, as vLLM does.

A decode that gets no token in such a pass *starves*; a request that has to make room is preempted and recomputed later.
"""

from typing import NamedTuple

from sim.engine.batch import Batch, Chunk
from sim.engine.block_hashing import BlockHashing
from sim.engine.config import SchedulerConfig
from sim.engine.progress import num_computed_tokens
from sim.engine.request import Request, RequestStatus
from sim.engine.scheduler_state import SchedulerState
from sim.errors import EngineCrashError


class Grant(NamedTuple):
    num_tokens: int
    num_new_blocks: int


ONE_TOKEN = Grant(1, 0)


class Preemption:
    """Schedules the running requests one by one; keeps nothing from one pass to the next."""

    def __init__(self, state: SchedulerState, block_hashing: BlockHashing) -> None:
        self._state = state
        self._block_hashing = block_hashing
        self._busy_contexts = busy_contexts(state.config)

    def schedule_running(self, batch: Batch) -> None:
        """Schedule in order of admission, preempting where blocks run out, and tell the state of every decode that starved."""
        if self._state.windows:
            self._state.windows.take_up_common(batch.step)
        RunningPass(self._state, self._block_hashing, batch, self._busy_contexts).run()


class RunningPass:
    """One such pass: the tokens and blocks that each request has been granted so far."""

    def __init__(
        self, state: SchedulerState, block_hashing: BlockHashing, batch: Batch, busy_contexts: frozenset[int]
    ) -> None:
        self._state = state
        self._block_hashing = block_hashing
        self._kv = state.kv
        self._rules = state.config.engine.rules
        self._batch = batch
        self._granted: dict[Request, Grant] = {}
        self._busy_contexts = busy_contexts

    def run(self) -> None:
        self._grant_in_order()
        state, batch = self._state, self._batch
        for request in state.running:
            grant = self._granted.get(request)
            if request.status is RequestStatus.DECODING and grant is None:
                state.starve(request, batch.step)
                batch.starved.append(request)
            elif request.status is RequestStatus.PREFILLING and grant is not None:
                self._block_hashing.add_chunk(batch, request, *grant)
            elif request.status is RequestStatus.ENDED and grant is not None:
                self._waste(request, grant, samples=True)
        batch.num_decodes = state.decodes.count
        if self._rules.asserts_batch_within_running and batch.num_requests > len(state.running):
            raise EngineCrashError(
                f"the engine of vLLM before 0.10.2 crashes in this run, by an assertion: with scheduling_policy priority it"
                f" preempted a request that it had already scheduled, and {batch.num_requests} in a batch are more than"
                f" the {len(state.running)} that run; give more KV blocks, or choose fcfs or a newer vllm_version."
            )

    def _grant_in_order(self) -> None:
        """The scan over the running requests. When one before its position is preempted, those behind it move up by one."""
        batch, policy, line = self._batch, self._state.policy, list(self._state.running)
        index = 0
        while index < len(line) and batch.budget > 0:
            request = line[index]
            if self._is_quiet(request):
                self._granted[request] = ONE_TOKEN
                batch.budget -= 1
                index += 1
                continue
            num_tokens = self._wanted(request)
            if num_tokens == 0:
                index += 1
                continue
            new = self._new_blocks(request, num_tokens)
            num_passed_over = 0
            while new > self._kv.pool.num_free:
                place = policy.victims_place(line)
                victim = line.pop(place)
                if place < index:
                    steps_back = self._steps_back(victim)
                    index -= steps_back
                    num_passed_over += not steps_back
                self._preempt(victim)
                if victim is request:
                    break
            if request.status is RequestStatus.PREEMPTED:
                if policy.ends_scan_at_own_preemption:
                    return
                continue
            self._grant(request, num_tokens, new)
            index += 1
            for passed_over in line[index - num_passed_over : index]:
                passed_over.passed_over_pass = batch.step

    def _is_quiet(self, request: Request) -> bool:
        """Whether a decode takes one token and nothing else: it begins and fills no block, and no window passes one.

        This shortcut pays where attention has a window, since every pass then comes here: with blocks of 16 tokens most
        decodes of a pass are quiet. Decodes that have just begun, or that starved lately, do not count as quiet.
        """
        step = self._batch.step
        return (
            request.status is RequestStatus.DECODING
            and step > request.first_decode_pass + 1
            and step > request.starved_pass + 3
            and (step - request.epoch) % self._state.config.block_size not in self._busy_contexts
        )

    def _grant(self, request: Request, num_tokens: int, num_new_blocks: int) -> None:
        self._kv.pool.take(num_new_blocks)
        block_hashing, step = self._block_hashing, self._batch.step
        if request.status is RequestStatus.ENDED:
            request.wasted_pass = step
        if request.status is RequestStatus.PREFILLING:  # a later victim of this pass may have filled an equal block
            block_hashing.keep_chunk(request, step, request.num_computed_tokens + num_tokens)
        elif self._kv.has_windows:
            block_hashing.keep_decoded_blocks(request, step, is_scheduled=True)
        self._batch.budget -= num_tokens
        self._granted[request] = Grant(num_tokens, num_new_blocks)

    def _wanted(self, request: Request) -> int:
        if request.status is RequestStatus.DECODING:
            return 1
        if request.status is RequestStatus.ENDED:
            return int(self._decodes_once_more(request))
        wanted = request.num_tokens - request.num_computed_tokens
        return min(wanted, self._batch.longest_chunk, self._batch.budget)

    def _decodes_once_more(self, request: Request) -> bool:
        """Whether a request with its last token in flight is scheduled again, as older versions do below max_model_len."""
        state = self._state
        num_tokens = request.num_prompt_tokens + request.max_tokens
        return state.wastes_a_decode and num_tokens < state.config.max_model_len

    def _new_blocks(self, request: Request, num_tokens: int) -> int:
        """Blocks that the next `num_tokens` take. Blocks that a window has passed are given back first."""
        if self._state.windows:
            self._block_hashing.keep_decoded_blocks(request, self._batch.step, is_scheduled=False)
            self._state.windows.free_passed_of(request, self._batch.step, self._state.num_collected)
        return self._kv.new_blocks(num_computed_tokens(request, self._batch.step), num_tokens)

    def _steps_back(self, victim: Request) -> bool:
        """Whether the scan steps back by one as a victim before its position leaves; if not, it passes over one request."""
        rule = self._rules.steps_back
        return rule == "always" or (rule == "scheduled" and victim in self._granted)

    def _preempt(self, victim: Request) -> None:
        """Preempt a request. Tokens granted to it in this pass are refunded; in older versions they run and count as computed."""
        state, batch = self._state, self._batch
        grant = self._granted.pop(victim, None)
        if grant is None:
            state.preempt(victim, batch.step, 0)
        elif self._rules.refunds_preempted_tokens:
            batch.budget += grant.num_tokens
            state.preempt(victim, batch.step, grant.num_tokens)
        else:
            self._waste(victim, grant, samples=False)
            state.preempt(victim, batch.step, grant.num_tokens, resumes_at=grant.num_tokens)
        batch.preempted.append(victim)

    def _waste(self, request: Request, grant: Grant, *, samples: bool) -> None:
        """Let granted tokens run although their result is dropped."""
        computed = num_computed_tokens(request, self._batch.step)
        self._batch.wasted.append(Chunk(request, grant.num_tokens, computed, grant.num_new_blocks, samples))


def busy_contexts(config: SchedulerConfig) -> frozenset[int]:
    """Contexts in tokens, modulo the block size, at which a decode begins a block, fills one, or a window passes one.

    A full block is registered in the pass that feeds its last token, under async scheduling up to two passes later.
    """
    passing = {delay for delay in config.passing_delays if delay is not None}
    return frozenset(context % config.block_size for context in {0, 1, 2} | passing)
