"""The engine that walks and the naive one are one engine in every mode: speculation, stages, adapters, KV from elsewhere, offload."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.config import KVGroup, SchedulerConfig
from sim.engine.front_door import rejections
from sim.engine.walking import vain_calls
from sim.errors import ConfigError
from sim.specs.rules import SchedulingRules
from sim.specs.speculating import ways_of
from sim.specs.speculation import METHODS, Speculation
from sim.workload.trace import Trace
from tests.configs import changed, scheduler_config
from tests.conformance.case import Case, RecordedStepTime
from tests.conformance.engines import run_reference, run_walking
from tests.conformance.modes import stages_ns
from tests.properties import engine_examples as examples
from tests.reference import modes as naive
from tests.reference import replica
from tests.workloads import CHECKPOINTED, GROUPS, STATEFUL, STATES_ALONE, step_times, traces, with_groups

MOST_PASSES = 2_000
RECORDED_VERSIONS = ("0.32.0", "0.33.0")
TIERED = ("offload", "multi")
ROLES: Sequence[naive.Role] = ("kv_both", "kv_producer", "kv_consumer")


def chunks(most_blocks: int) -> st.SearchStrategy[naive.Offload]:
    """A CPU tier, of chunks of so many blocks at most."""
    return st.builds(
        naive.Offload,
        cpu_chunks=st.integers(1, 12) | st.integers(1, 40),
        load_base_s=st.integers(0, 9),
        load_block_s=st.integers(0, 9),
        store_base_s=st.integers(0, 90),
        store_block_s=st.integers(0, 9),
        blocks_per_chunk=st.integers(1, most_blocks),
        prompt_only=st.booleans(),
        eviction_policy=st.sampled_from(("lru", "arc")),
    )


@st.composite
def speculations(draw: st.DrawFn, *, is_async: bool) -> Speculation:
    """A way of speculating; ngram does not go with async scheduling."""
    count = draw(st.integers(1, 4))
    by_batch_size = draw(st.just(()) | st.lists(st.integers(0, count), min_size=2, max_size=6).map(tuple))
    return Speculation(
        count,
        draw(st.sampled_from(METHODS[2 if is_async else 0 :])),
        parallel_drafting=draw(st.booleans()),
        mtp_layers=draw(st.integers(1, 4)),
        by_batch_size=by_batch_size,
        **ways_of(
            draw(st.sampled_from(RECORDED_VERSIONS)),
            trusts_last_block=draw(st.sampled_from((False, False, False, True))),
            hashes_look_ahead=draw(st.sampled_from((True, True, False))),
        ),
    )


def derived(speculation: Speculation, *, has_connector: bool) -> naive.Speculation:
    """What it asks of the naive engine, with vLLM's older hashes beside a KV connector."""
    if has_connector:
        speculation = replace(speculation, hashes_look_ahead=False)
    return naive.Speculation(
        k=speculation.num_speculative_tokens,
        lookahead=speculation.num_lookahead_tokens,
        draft_slots=speculation.num_draft_slots,
        drops_last_hit=speculation.drops_last_hit,
        prefill_lookahead=speculation.num_prefill_lookahead,
        hash_lookahead=speculation.num_hash_lookahead_tokens,
        by_batch_size=speculation.by_batch_size or None,
    )


def recorded(speculation: Speculation | None) -> dict[str, Any]:
    """What a recording would say besides."""
    spec = speculation and {
        "method": speculation.method,
        "parallel": speculation.parallel_drafting,
        "mtp_layers": speculation.mtp_layers,
        "disable_eagle_block_drop": speculation.trusts_last_block,
        "disable_lookahead_block_hashes": not speculation.hashes_look_ahead,
    }
    version = RECORDED_VERSIONS[not speculation.dflash_reads_ahead] if speculation else RECORDED_VERSIONS[0]
    return {
        "ext": 1,
        "vllm_version": version,
        "config": {"spec": spec} if spec else {},
        "result": {"status": "assert"},
    }


def scripts(*, is_async: bool, kind: str, fewest: int, may_fail: bool = True) -> st.SearchStrategy[naive.Script]:
    """What becomes of one request; a store has no more of its prompt than of the shortest."""
    counts = st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple)
    has_remote, is_nixl = kind != "offload", kind in {"nixl", "multi"}
    return st.builds(
        naive.Script,
        accept=counts,
        propose=st.none() if is_async else st.none() | counts,
        is_remote=st.booleans() if has_remote else st.just(False),
        recv_s=st.integers(0, 40),
        recv_fails=st.booleans() if has_remote and may_fail else st.just(False),
        is_sent_on=st.booleans() if is_nixl else st.just(False),
        send_s=st.integers(0, 40),
        remote_tokens=st.none() if is_nixl else st.integers(0, fewest),
        loads_in_step=st.booleans() if kind == "mock" else st.just(False),
    )


LORAS = st.integers(1, 2).flatmap(
    lambda most: st.builds(
        naive.Loras,
        max_loras=st.just(most),
        max_cpu_loras=st.integers(most, 3),
        copy_s=st.integers(0, 5),
        read_s=st.integers(0, 9),
        dummy_s=st.integers(0, 40),
    )
)


def with_adapters(trace: Trace, names: Sequence[str]) -> Trace:
    """Each session, or each request where there are none, asks for the next of these."""
    sessions = list(trace.session_id or trace.request_id)
    places = {session: place for place, session in enumerate(dict.fromkeys(sessions))}
    return replace(trace, lora_name=tuple(names[places[session]] for session in sessions))


def marked(groups: tuple[KVGroup, ...]) -> st.SearchStrategy[tuple[KVGroup, ...]]:
    """These, or these of which vLLM knows that one has a drafter's layers."""
    could = [number for number, group in enumerate(groups) if not group.keeps_states]
    marks = [
        tuple(replace(group, has_drafter=number == chosen) for number, group in enumerate(groups)) for chosen in could
    ]
    return st.sampled_from((groups, *marks))


@st.composite
def cases(draw: st.DrawFn, *, speculates: bool = True) -> Case:
    """Some requests, and whatever modes go together."""
    is_async = draw(st.booleans())
    speculation = draw(st.none() | speculations(is_async=is_async)) if speculates else None
    kind = draw(st.sampled_from(("", "nixl", "mock", "offload", "multi")))
    num_stages = draw(st.integers(1, 3)) if kind not in TIERED else 1
    if num_stages > 1 and not is_async:
        speculation = None  # of which vLLM's engine dies
    trace = draw(traces(max_requests=8))
    if draw(st.booleans()):
        trace = with_adapters(
            trace, draw(st.lists(st.sampled_from(("", "one", "two", "three")), min_size=8, max_size=8))
        )
    block_size = draw(st.integers(1, 4))
    longest = int((trace.prompt_tokens + trace.output_tokens).max())
    config = scheduler_config(
        async_scheduling=is_async,
        block_size=block_size,
        max_model_len=longest + draw(st.integers(0, 3)),
        num_gpu_blocks=-(-longest // block_size) + draw(st.integers(8, 20)),
        max_num_seqs=draw(st.integers(1, 6)),
        max_num_batched_tokens=draw(st.integers(16, 60)),
        enable_prefix_caching=kind == "multi" or draw(st.booleans()),
        scheduling_policy=draw(st.sampled_from(("fcfs", "priority", "sjf"))),
        long_prefill_token_threshold=draw(st.sampled_from((0, 0, 5))),
        watermark=draw(st.sampled_from((0.0, 0.0, 0.1))),
        rules=SchedulingRules(
            counts_loras_of_all_running=draw(st.booleans()),
            keeps_verified_blocks=draw(st.booleans()),
            passes_over_short_chunks=draw(st.booleans()),
            ranks_chunks_by_request=draw(st.booleans()),
            touches_chunks_at_once=draw(st.booleans()),
            holders_go_first=draw(st.booleans()),
            offers_chunks_anew=draw(st.booleans()),
            tells_all_connectors_of_allocations=draw(st.booleans()),
        ),
    )
    num_drafts = speculation.num_speculative_tokens if speculation else 0
    kinds: tuple[tuple[KVGroup, ...], ...] = GROUPS
    if speculation and (kind or speculation.num_tokens_not_kept):
        kinds = GROUPS[:1]
    if kind in {"", "nixl"} or (kind in TIERED and block_size > num_drafts and not _leaves_ends(speculation, config)):
        states = STATES_ALONE if speculation else STATEFUL
        # a pass over drafts is shorter than a block of vLLM's, so that it writes no state before its end
        kinds += tuple(kind for kind in states if CHECKPOINTED not in kind or block_size > num_drafts)
    if kind in TIERED and not config.engine.enable_prefix_caching:
        kinds = GROUPS[:1]
    config = draw(with_groups(config, kinds, num_drafts))
    if speculation and not speculation.num_tokens_not_kept:
        config = changed(config, kv_groups=draw(marked(config.kv_groups)))
    is_one_group = len(config.kv_groups) == 1 and not config.has_windows
    modes = naive.Modes(
        num_batches_in_flight=num_stages + is_async,
        speculation=derived(speculation, has_connector=bool(kind)) if speculation else None,
        pipeline=_pipeline(draw, num_stages),
        loras=draw(st.none() | LORAS),
        transfers=_transfers(draw, kind, most_blocks=3 if is_one_group else 1) if kind else None,
        idle_sleep_s=draw(st.integers(1, 9)) if kind else draw(st.sampled_from((0, 0, 5))),
        throttle_interval=draw(st.sampled_from((0, 0, 3))),
        local_prefill_interval=draw(st.sampled_from((1, 1, 3))),
    )
    may_fail = kind != "multi" or config.engine.rules.tells_all_connectors_of_allocations  # as multi_connector.py says
    script = scripts(is_async=is_async, kind=kind, fewest=int(trace.prompt_tokens.min()) - 1, may_fail=may_fail)
    given_scripts = draw(st.lists(script, min_size=len(trace), max_size=len(trace)))
    return Case(trace, config, draw(step_times), MOST_PASSES, recorded(speculation), modes, given_scripts)


def _leaves_ends(speculation: Speculation | None, config: SchedulerConfig) -> bool:
    """Whether the last known tokens of a request may be no block that can be found, so that no tier of ours knows it."""
    if speculation is None:
        return False
    engine = config.engine
    return speculation.num_tokens_not_kept > 0 or not (engine.async_scheduling or engine.rules.keeps_verified_blocks)


def _pipeline(draw: st.DrawFn, num_stages: int) -> naive.Pipeline:
    if num_stages == 1:
        return naive.Pipeline()
    multipliers = draw(st.lists(st.sampled_from((200, 500, 1000)), min_size=num_stages, max_size=num_stages))
    return naive.Pipeline(num_stages, partial(stages_ns, multipliers), draw(st.integers(0, 3)))


def _transfers(draw: st.DrawFn, kind: str, *, most_blocks: int) -> naive.Transfers:
    return naive.Transfers(
        connector=kind,  # type: ignore[arg-type]  # one of those
        role=draw(st.sampled_from(ROLES if kind in {"nixl", "multi"} else ROLES[:1])),
        reports_at_start=draw(st.booleans()),
        recv_token_s=draw(st.integers(0, 2)),
        recomputes_failed=draw(st.booleans()),
        offload=draw(chunks(most_blocks)) if kind in TIERED else None,
    )


@examples(150)
@given(case=cases())
def test_engines_agree_in_every_mode(case: Case) -> None:
    """Step by step, transfer by transfer, and on what became of each request; also that KV is loaded, in vain, for ever."""
    assert not rejections(case.trace, case.trace.output_tokens, changed(case.config))
    try:
        with patch.object(replica, "MOST_VAIN_CALLS", vain_calls.MOST_VAIN_LOADS):
            expected = run_reference(case)
    except ConfigError:
        with pytest.raises(ConfigError, match=r"again and again|wait for ever"):
            run_walking(case)
        return
    got = run_walking(case)
    for one, other in zip(got.steps, expected.steps, strict=False):
        assert one == other
    assert len(got.steps) == len(expected.steps)
    assert _told(got.kv_events) == _told(expected.kv_events)
    assert (got.requests, got.crashed) == (expected.requests, expected.crashed)


def _told(events: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """But for how many stores are waited for, of which offload.py says that it may be one less."""
    return [list(event[:3] if event[1] == "flush_wait" else event) for event in events]


def test_drafts_are_offered_by_sample() -> None:
    """Also after a sample for which the size of the batch allowed none: the first request, alone for most of its answer, is offered 0, 1, 0, ..."""
    trace = Trace(
        tuple("abcde"), np.array([0.0, 0.0, 0.0, 0.0, 30.0]), np.ones(5, dtype=np.int64), np.array([9, 1, 1, 1, 1])
    )
    config = scheduler_config(async_scheduling=False, block_size=1, max_model_len=10, num_gpu_blocks=19, max_num_seqs=2)
    modes = naive.Modes(num_batches_in_flight=1, speculation=naive.Speculation(k=1, by_batch_size=(0, 0, 1)))
    recorded = {"ext": 1, "config": {"spec": {"method": "ngram"}}, "result": {"status": "assert"}}
    given_scripts = [naive.Script(propose=(0, 1)), *[naive.Script()] * 4]
    case = Case(trace, config, RecordedStepTime(1, 0, 1), MOST_PASSES, recorded, modes, given_scripts)
    expected, got = run_reference(case), run_walking(case)
    assert got.steps == expected.steps
