"""Workloads drawn by Hypothesis: few requests, small numbers, and every feature of the scheduler by turns.

All times are integers, so that sums of them are exact and two engines can be held to equality.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from sim.engine.config import KVGroup, SchedulerConfig
from sim.engine.content import output_id, private_prompt_id
from sim.specs.arguments import DENSELY
from sim.specs.releases import PRIORITY_SINCE, parse_version, release_for, unknown_arguments
from sim.steptime.common_reads import CommonReads
from sim.workload.prefixes import blocks
from sim.workload.trace import Segment, Trace
from tests.configs import changed, scheduler_config
from tests.conformance.case import RecordedStepTime

Prompt = tuple[Segment, ...]

GROUPS = (
    (KVGroup(),),
    (KVGroup(window=5),),
    (KVGroup(), KVGroup(window=3)),
    (KVGroup(window=1), KVGroup(), KVGroup(window=9)),
    (KVGroup(), KVGroup()),
)


STATES = KVGroup(window=2, keeps_states=True)
CHECKPOINTED = KVGroup(window=2, keeps_states=True, writes_checkpoints=True)
STATES_ALONE = ((KVGroup(), STATES), (STATES, STATES, KVGroup()), (KVGroup(), CHECKPOINTED, CHECKPOINTED))
STATEFUL = (*STATES_ALONE, (KVGroup(), KVGroup(window=3), CHECKPOINTED))


def planned(groups: Sequence[KVGroup], config: SchedulerConfig, num_drafts: int = 0) -> SchedulerConfig:
    """With these KV groups, those that keep states being none where prefixes are not cached."""
    if config.engine.enable_prefix_caching:
        return changed(config, kv_groups=tuple(groups), num_state_blocks=0)
    tokens = tuple(group for group in groups if not group.keeps_states)
    num_states = len(groups) - len(tokens)
    return changed(config, kv_groups=tokens, num_state_blocks=num_states * (1 + num_drafts))


def intervals(groups: Sequence[KVGroup], block_size: int) -> st.SearchStrategy[int | str]:
    """Where windows, if there are any, stay cached: everywhere, where prompts end and part, or every so many blocks as well."""
    if all(group.window is None for group in groups):
        return st.just(DENSELY)
    return st.sampled_from((DENSELY, 0, 0, 2 * block_size, 5 * block_size))


@st.composite
def with_groups(
    draw: st.DrawFn, config: SchedulerConfig, kinds: Sequence[tuple[KVGroup, ...]] = GROUPS, num_drafts: int = 0
) -> SchedulerConfig:
    """As many blocks of each of several KV groups, with windows and states or without."""
    groups = draw(st.just(GROUPS[0]) | st.sampled_from(kinds))
    return changed(
        planned(groups, config, num_drafts),
        num_gpu_blocks=1 + (config.num_gpu_blocks - 1) * len(groups) + num_drafts * len(groups),
        prefix_cache_retention_interval=draw(intervals(groups, config.block_size)),
    )


class Workload(NamedTuple):
    """All that an engine is given."""

    trace: Trace
    config: SchedulerConfig
    step_time: RecordedStepTime


step_times = st.builds(
    RecordedStepTime, base_ns=st.integers(1, 20), per_token_ns=st.integers(0, 3), per_ctx_ns=st.integers(0, 2)
)

COMMON_READS = st.sampled_from((None, CommonReads(num_at_once=1.5, most=0.5), CommonReads(num_at_once=4.0, most=0.3)))

VERSIONS = (
    "0.33.0",
    "0.32.0",
    "0.30.0",
    "0.27.1",
    "0.23.0",
    "0.18.1",
    "0.12.0",
    "0.11.1",
    "0.11.0",
    "0.10.1",
    "0.9.2",
    "0.8.5",
)
"""One of each group of versions that schedule alike, the newest of each."""

SINCE_0_12 = VERSIONS[: VERSIONS.index("0.12.0") + 1]
"""Those in which no tokens are scheduled in vain and nobody is skipped in the queue."""


def tight_config(draw: st.DrawFn, trace: Trace, *, least_spare: int, **arguments: Any) -> SchedulerConfig:
    """Blocks for the longest request of a trace and few more, at least `least_spare`; small batches; rules of the newest two versions."""
    block_size = draw(st.integers(1, 4))
    longest = int((trace.prompt_tokens + trace.output_tokens).max())
    return scheduler_config(
        async_scheduling=draw(st.booleans()),
        block_size=block_size,
        max_model_len=longest + 1,
        num_gpu_blocks=-(-longest // block_size) + draw(st.integers(least_spare, 20)),
        max_num_seqs=draw(st.integers(1, 6)),
        max_num_batched_tokens=draw(st.integers(16, 60)),
        rules=release_for(draw(st.sampled_from(("0.33.0", "0.32.0")))).rules,
        common_reads=draw(COMMON_READS),
        **{name: draw(values) for name, values in arguments.items()},
    )


@st.composite
def traces(draw: st.DrawFn, *, max_requests: int = 10, sharing: bool = True) -> Trace:
    """Bursts, ties and idle gaps; private prompts, shared prefixes, hashed blocks, and sessions that quote outputs."""
    num_requests = draw(st.integers(1, max_requests))
    gaps = draw(st.lists(st.sampled_from((0, 0, 0, 1, 2, 7, 30, 500)), min_size=num_requests, max_size=num_requests))
    outputs = draw(st.lists(st.integers(1, 30), min_size=num_requests, max_size=num_requests))
    prompts: list[Prompt] = []
    is_hashed = sharing and draw(st.integers(0, 2)) == 2
    for row in range(num_requests):
        kind = hashed_prompts() if is_hashed else shared_prompts(row, prompts, outputs)
        prompts.append(draw(kind if sharing else private_prompts(row)))
    urgencies = st.lists(st.integers(0, 2), min_size=num_requests, max_size=num_requests)
    priority = draw(st.none() | urgencies | st.permutations(range(num_requests)))
    return Trace(
        request_id=tuple(f"r{row}" for row in range(num_requests)),
        arrival_s=np.cumsum(gaps).astype(np.float64),
        prompt_tokens=np.array([sum(tokens for _, tokens in prompt) for prompt in prompts], dtype=np.int64),
        output_tokens=np.array(outputs, dtype=np.int64),
        priority=None if priority is None else np.array(priority, dtype=np.int64),
        segments=prompts if sharing else None,
    )


def private_prompts(row: int) -> st.SearchStrategy[Prompt]:
    return st.integers(1, 24).map(lambda tokens: ((private_prompt_id(row), tokens),))


@st.composite
def hashed_prompts(draw: st.DrawFn) -> Prompt:
    """As traces of hashed blocks have them: a few whole blocks that many share, the last one cut short."""
    head = draw(st.lists(st.tuples(st.integers(0, 2), st.sampled_from((8, 16))), max_size=3))
    return (*head, (draw(st.integers(0, 3)), draw(st.integers(1, 8))))


@st.composite
def shared_prompts(draw: st.DrawFn, row: int, earlier: Sequence[Prompt], outputs: Sequence[int]) -> Prompt:
    """Nothing, a system prompt, or an earlier request's prompt with some of its output; then tokens of its own."""
    kind = draw(st.sampled_from(("private", "system", "session") if earlier else ("private", "system")))
    head: Prompt = ()
    if kind == "system":
        head = ((draw(st.integers(0, 1)), draw(st.integers(1, 16))),)
    elif kind == "session":
        previous = draw(st.integers(0, row - 1))
        head = (*earlier[previous], (output_id(previous), draw(st.integers(1, outputs[previous]))))
    own = draw(st.integers(0 if head else 1, 16))
    return (*head, (private_prompt_id(row), own)) if own else head


@st.composite
def conversations(draw: st.DrawFn, *, max_requests: int = 10) -> Trace:
    """Turns of a few sessions in turn: prompts that go on, break off before, or begin anew; in some with hash ids.

    Ids are those of blocks of `hash_block_size` tokens; the last one of a prompt mostly keeps its id as the block fills.
    """
    num_turns, num_sessions = draw(st.integers(1, max_requests)), draw(st.integers(1, 3))
    sessions = draw(st.lists(st.integers(0, num_sessions - 1), min_size=num_turns, max_size=num_turns))
    gaps = draw(st.lists(st.sampled_from((0, 0, 1, 2, 7, 30, 200)), min_size=num_turns, max_size=num_turns))
    outputs = draw(st.lists(st.integers(1, 30), min_size=num_turns, max_size=num_turns))
    said, prompts = dict.fromkeys(range(num_sessions), 0), []
    for session, output in zip(sessions, outputs, strict=True):
        prompts.append(max(1, said[session] + draw(st.sampled_from((1, 2, 3, 5, 16, 20, 0, -1, -7, -40)))))
        said[session] = prompts[-1] + output
    return Trace(
        request_id=tuple(f"r{row}" for row in range(num_turns)),
        arrival_s=np.cumsum(gaps).astype(np.float64),
        prompt_tokens=np.array(prompts, dtype=np.int64),
        output_tokens=np.array(outputs, dtype=np.int64),
        session_id=tuple(f"s{session}" for session in sessions),
        segments=draw(st.none() | hashed_turns(sessions, prompts)),
    )


@st.composite
def hashed_turns(draw: st.DrawFn, sessions: Sequence[int], prompts: Sequence[int]) -> list[Prompt]:
    """Prompts in blocks of one size; a session's blocks keep their ids from turn to turn, or all change from some place on."""
    size, fresh = draw(st.sampled_from((3, 8, 16))), count(0)
    ids: dict[int, list[int]] = {session: [] for session in sessions}
    found = []
    for session, tokens in zip(sessions, prompts, strict=True):
        known, num_blocks = ids[session], -(-tokens // size)
        if draw(st.integers(0, 4)) == 4:
            del known[draw(st.integers(0, num_blocks)) :]
        known.extend(next(fresh) for _ in range(num_blocks - len(known)))
        found.append(blocks(known[:num_blocks], tokens, size))
    return found


@st.composite
def configs(
    draw: st.DrawFn, trace: Trace, *, versions: Sequence[str] = VERSIONS, may_crash: bool = False
) -> SchedulerConfig:
    """Any configuration that vLLM would start with, mostly with hardly more blocks than the largest request needs.

    It follows the rules of one of the versions, without those that kill the engine unless it `may_crash`.
    """
    block_size = draw(st.sampled_from((1, 2, 3, 4, 8, 16, 32)))
    groups = draw(st.just(GROUPS[0]) | st.sampled_from((*GROUPS, *STATEFUL)))
    largest = int((trace.prompt_tokens + trace.output_tokens).max())
    config = scheduler_config(
        max_num_seqs=draw(st.sampled_from((1, 2, 3, 4, 8, 16, 16))),
        max_num_batched_tokens=draw(st.sampled_from((1, 2, 4, 8, 16, 32, 64, 256))),
        max_model_len=draw(st.just(largest + 1) | st.integers(largest // 2 + 2, largest + 1)),
        num_gpu_blocks=2,
        block_size=block_size,
        enable_prefix_caching=draw(st.booleans()),
        scheduling_policy=draw(st.sampled_from(("fcfs", "priority", "sjf"))),
        async_scheduling=draw(st.booleans()),
        kv_groups=groups,
        prefix_cache_retention_interval=draw(intervals(groups, block_size)),
        common_reads=draw(COMMON_READS),
        **draw(limits()),
    )
    version = draw(st.sampled_from(versions))
    config = as_of(version, config)
    is_thrashing = can_thrash(trace, config)
    if is_thrashing or parse_version(version) < parse_version(STATES_SINCE):
        groups = tuple(group for group in groups if not group.keeps_states)
    config = planned(groups, config)
    if not may_crash:
        harmless = replace(config.engine.rules, asserts_batch_within_running=False, orders_ties_by_id=True)
        config = changed(config, rules=harmless)
    needed = -(-largest // block_size) * len(groups)
    num_gpu_blocks = 1 + max(1, needed + draw(st.integers(-1, needed)))
    config = changed(config, num_gpu_blocks=num_gpu_blocks)
    if is_thrashing:
        return without_chunks(
            changed(config, long_prefill_token_threshold=0, long_prefill_token_threshold_adaptive=False)
        )
    if config.keeps_states:
        return config
    return without_chunks(config) if draw(st.integers(0, 4)) == 4 else config


STATES_SINCE = "0.27.1"
"""The first of those versions whose rules for layers that keep states are known."""

OFF: dict[str, Any] = {
    "async_scheduling": False,
    "scheduler_reserve_full_isl": False,
    "watermark": 0.0,
    "long_prefill_token_threshold_adaptive": False,
    "max_num_active_seqs": None,
    "max_num_scheduled_tokens": None,
    "prefix_cache_retention_interval": DENSELY,
}
"""What options that a version does not have amount to."""


def as_of(vllm_version: str, config: SchedulerConfig) -> SchedulerConfig:
    """The configuration in that version: under its rules, and without the options that it does not have."""
    absent = {name: OFF[name] for name in unknown_arguments(vllm_version) if name in OFF}
    has_priority = parse_version(vllm_version) >= parse_version(PRIORITY_SINCE)
    policy = config.engine.scheduling_policy if has_priority else "fcfs"
    return changed(config, rules=release_for(vllm_version).rules, scheduling_policy=policy, **absent)


@st.composite
def limits(draw: st.DrawFn) -> dict[str, Any]:
    """The options that hold requests back, most of them off."""
    threshold = draw(st.sampled_from((0, 0, 1, 3, 8)))
    return {
        "long_prefill_token_threshold": threshold,
        "long_prefill_token_threshold_adaptive": draw(st.booleans()),
        "max_num_active_seqs": draw(st.sampled_from((None, None, None, 1, 3))),
        "max_num_scheduled_tokens": draw(st.sampled_from((None, None, None, 1, 6))),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "watermark": draw(st.sampled_from((0.0, 0.0, 0.1, 0.4))),
    }


def can_thrash(trace: Trace, config: SchedulerConfig) -> bool:
    """Whether requests of equal rank could preempt each other's chunks for ever, as they do in vLLM.

    Among equals the first in line is the victim, so that whoever has come furthest starts again. Whole prefills end
    that, as each admission then yields a token.
    """
    priority = np.zeros(len(trace)) if trace.priority is None else trace.priority
    ranks = set(zip(priority.tolist(), trace.arrival_s.tolist(), strict=True))
    return config.engine.scheduling_policy == "priority" and len(ranks) < len(trace)


def without_chunks(config: SchedulerConfig) -> SchedulerConfig:
    """Prompts are not cut for lack of budget, which vLLM allows only where it covers any of them."""
    return changed(
        config,
        enable_chunked_prefill=False,
        max_num_batched_tokens=max(config.engine.max_num_batched_tokens, config.max_model_len),
        max_num_scheduled_tokens=None,
    )


@st.composite
def workloads(
    draw: st.DrawFn, /, *, versions: Sequence[str] = VERSIONS, may_crash: bool = False, **arguments: Any
) -> Workload:
    """A trace, a configuration that makes it hard, and integer step times."""
    trace = draw(traces(**arguments))
    return Workload(trace, draw(configs(trace, versions=versions, may_crash=may_crash)), draw(step_times))


@st.composite
def roomy_workloads(draw: st.DrawFn, /, **arguments: Any) -> Workload:
    """Workloads with blocks for everybody at once: nobody is preempted or held back for lack of them."""
    trace, config, step_time = draw(workloads(**arguments))
    tokens = int((trace.prompt_tokens + trace.output_tokens).sum())
    return Workload(trace, changed(config, num_gpu_blocks=4 * (tokens + len(trace) + 1)), step_time)
