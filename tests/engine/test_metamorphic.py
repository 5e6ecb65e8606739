"""What must not change a run, or must change it in a known way."""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from sim.engine.config import KVGroup, SchedulerConfig
from sim.workload.trace import Trace
from tests.configs import changed
from tests.engine.moments import moments
from tests.engines import Engine
from tests.makers import Run, replay
from tests.properties import engine_examples as examples
from tests.workloads import Workload, roomy_workloads, workloads

TIMES = ("arrival_s", "first_scheduled_s", "first_token_s", "finish_s")
few = examples(40)


def facts(done: Run, *, scale: float = 1.0, shift: float = 0.0) -> dict[str, Any]:
    """All that a run says, its times scaled and shifted."""
    requests = {field.name: getattr(done.records.requests, field.name) for field in fields(done.records.requests)}
    for name in TIMES:
        requests[name] = requests[name] * scale + shift
    steps = [step | {name: step[name] * scale + shift for name in ("t", "start", "end")} for step in done.steps]
    return {name: np.asarray(column).tolist() for name, column in requests.items()} | {
        "gaps": sorted((gap * scale, count) for gap, count in done.gaps.items()),
        "steps": steps,
        "hits": (done.records.prefix_cache_queries, done.records.prefix_cache_hits),
    }


def schedule(done: Run) -> list[tuple[Any, ...]]:
    """Who ran how much when, whatever the state of the cache."""
    return [(step["start"], step["end"], step["sched"], step["free"], step["waiting"]) for step in done.steps]


def same(one: Run, other: Run) -> None:
    assert repr(facts(one)) == repr(facts(other))


@few
@given(workload=workloads())
def test_the_same_input_gives_the_same_bytes(engine: Engine, workload: Workload) -> None:
    """Two runs of one workload do not differ in a bit."""
    same(replay(engine, *workload), replay(engine, *workload))


@few
@given(workload=workloads(), scale=st.sampled_from((0.5, 2.0, 1024.0)))
def test_scaling_all_times_scales_the_results(engine: Engine, workload: Workload, scale: float) -> None:
    """Time has no unit: arrivals and steps twice as long make all times twice as long and change nothing else."""
    trace, config, model = workload
    scaled = replace(trace, arrival_s=trace.arrival_s * scale)
    slower = replace(
        model,
        base_ns=model.base_ns * scale,
        per_token_ns=model.per_token_ns * scale,
        per_ctx_ns=model.per_ctx_ns * scale,
    )
    assert repr(facts(replay(engine, scaled, config, slower))) == repr(facts(replay(engine, *workload), scale=scale))


@few
@given(workload=workloads(), shift=st.integers(-600, 600))
def test_shifting_arrivals_shifts_the_results(engine: Engine, workload: Workload, shift: int) -> None:
    """Time has no origin: a trace may start anywhere, also before zero."""
    trace, config, model = workload
    moved = replay(engine, replace(trace, arrival_s=trace.arrival_s + shift), config, model)
    assert repr(facts(moved)) == repr(facts(replay(engine, *workload), shift=shift))


@few
@given(workload=workloads())
def test_contents_are_only_names(engine: Engine, workload: Workload) -> None:
    """Giving shared contents other ids changes nothing."""
    trace, config, model = workload
    renamed = [
        tuple((1000 - content_id if content_id >= 0 else content_id, tokens) for content_id, tokens in prompt)
        for prompt in trace.segments or ()
    ]
    same(replay(engine, replace(trace, segments=renamed), config, model), replay(engine, *workload))


@few
@given(workload=workloads(sharing=False))
def test_prompts_of_which_nothing_is_known_are_private(engine: Engine, workload: Workload) -> None:
    """A trace without segments runs as one in which every prompt is its own segment."""
    trace, config, model = workload
    spelled = [((row, int(tokens)),) for row, tokens in enumerate(trace.prompt_tokens)]
    same(replay(engine, replace(trace, segments=spelled), config, model), replay(engine, *workload))


def unused(trace: Trace, config: SchedulerConfig) -> Iterator[SchedulerConfig]:
    """The same configuration with features switched on that have nothing to do."""
    yield changed(config, watermark=0.5 / config.num_gpu_blocks) if config.engine.watermark == 0 else config
    yield changed(config, max_num_active_seqs=config.max_running)
    yield changed(config, max_num_scheduled_tokens=config.token_budget)
    if not config.engine.long_prefill_token_threshold:
        yield changed(config, long_prefill_token_threshold=config.token_budget)
    if trace.priority is None and config.engine.scheduling_policy == "fcfs":
        yield changed(config, rules=replace(config.engine.rules, preempts_past_itself=True))


@few
@given(workload=workloads())
def test_options_with_nothing_to_do_change_nothing(engine: Engine, workload: Workload) -> None:
    """A watermark below a block, a threshold as large as the budget, limits equal to those that hold anyway."""
    trace, config, model = workload
    before = replay(engine, *workload)
    for idle in unused(trace, config):
        same(before, replay(engine, trace, idle, model))


@few
@given(workload=roomy_workloads(sharing=False))
def test_a_cache_without_sharing_changes_nothing(engine: Engine, workload: Workload) -> None:
    """With private prompts and room for all, prefix caching on and off schedule alike, but for states, for which it cuts prompts."""
    trace, config, model = workload
    assume(not config.keeps_states)
    on, off = (replay(engine, trace, changed(config, enable_prefix_caching=switch), model) for switch in (True, False))
    assert schedule(on) == schedule(off)
    assert on.records.prefix_cache_hits == 0


@few
@given(workload=workloads())
def test_equal_priorities_are_first_come_first_served(engine: Engine, workload: Workload) -> None:
    """Where no two arrive together and scheduling is sync, one priority for all makes a queue of the policy's heap.

    Prompts are cut: versions that pass over those that may not be, and do not fit, put them back in another order.
    """
    trace, config, model = workload
    apart = replace(trace, arrival_s=trace.arrival_s + np.arange(len(trace)), priority=np.full(len(trace), 3))
    sync = changed(config, async_scheduling=False, enable_chunked_prefill=True)
    fcfs, priority = changed(sync, scheduling_policy="fcfs"), changed(sync, scheduling_policy="priority")
    same(replay(engine, apart, fcfs, model), replay(engine, apart, priority, model))


@few
@given(workload=workloads())
def test_a_window_of_the_whole_length_is_full_attention(engine: Engine, workload: Workload) -> None:
    """A window that never passes a token gives nothing back and needs every block of a hit; only what it reads in common is not looked for."""
    trace, config, model = workload
    config = changed(config, common_reads=None)
    full = changed(config, kv_groups=(KVGroup(),))
    wide = changed(config, kv_groups=(KVGroup(window=config.max_model_len + 1, is_kept_sparsely=False),))
    same(replay(engine, trace, full, model), replay(engine, trace, wide, model))


@examples(60)
@given(workload=roomy_workloads())
def test_a_hit_is_the_longest_prefix_that_was_computed(engine: Engine, workload: Workload) -> None:
    """With room for every content ever computed, each lookup finds all full blocks it shares with what was scheduled."""
    trace, config, model = workload
    config = changed(config, enable_prefix_caching=True, async_scheduling=False, kv_groups=(KVGroup(),))
    workload = Workload(trace, config, model)
    prompts = trace.segments or ()
    spoken = {name: spell(row, prompts[row]) for row, name in enumerate(trace.request_id)}
    computed: dict[str, int] = {}
    for moment in moments(workload, replay(engine, *workload)):
        for name, tokens, before, _ in moment.step["sched"]:
            if name in moment.admitted:
                limit = moment.known[name] - 1
                shared = max(
                    (common(spoken[name], spoken[other][:length]) for other, length in computed.items()), default=0
                )
                assert before == min(shared, limit) // config.block_size * config.block_size
            computed[name] = before + tokens


def spell(row: int, prompt: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """A prompt and its longest output, token by token."""
    return [(content_id, k) for content_id, tokens in (*prompt, (-2 * row - 2, 100)) for k in range(tokens)]


def common(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> int:
    """Tokens before the first difference."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
