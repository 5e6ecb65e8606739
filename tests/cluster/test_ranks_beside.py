"""Ranks in lock step with adapters and with KV in host memory, against naive ones and in numbers."""

from dataclasses import astuple, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import sim
from sim.cluster.adapters import lora_slots
from sim.cluster.clients import AT_THEIR_TIMES, Clients
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.simulation import simulate
from sim.cluster.users import Users
from sim.deployment import deploy
from sim.engine.config import SchedulerConfig
from sim.engine.content import private_prompt_id
from sim.engine.rank_group import LockStepRules
from sim.engine.walking import vain_calls
from sim.engine.walking.modes import Modes
from sim.errors import ConfigError
from sim.specs.kv_transfer import OffloadConfig
from sim.specs.lora import LoraSlots
from sim.steptime.protocol import Agreement, StepShape, StepTimeModel
from sim.workload.trace import Trace
from tests.cluster.test_clusters_agree import assert_same_run
from tests.cluster.test_offload_agrees import POLLING_S
from tests.cluster.tiers import tiers
from tests.configs import changed
from tests.conformance.case import RecordedStepTime
from tests.engine.test_engines_agree import Telling
from tests.engine.test_modes_agree import LORAS, with_adapters
from tests.makers import ONE_SECOND, Ask, make_config, make_trace
from tests.properties import engine_examples as examples
from tests.reference import modes as naive
from tests.reference.cluster import with_cpu_tier
from tests.reference.lockstep import simulate_lock_step
from tests.workload.makers import make_trace as workload_trace
from tests.workloads import (
    GROUPS,
    SINCE_0_12,
    STATEFUL,
    Prompt,
    Workload,
    step_times,
    tight_config,
    with_groups,
    workloads,
)

names = st.lists(st.sampled_from(("", "a", "b", "c")), min_size=14, max_size=14)


@examples(200)
@given(
    workload=workloads(versions=SINCE_0_12),
    loras=LORAS,
    names=names,
    num_ranks=st.integers(1, 3),
    concurrency=st.none() | st.integers(1, 8),
    interval=st.sampled_from([1, 3]),
)
def test_ranks_with_adapters(
    workload: Workload,
    loras: naive.Loras,
    names: list[str],
    num_ranks: int,
    concurrency: int | None,
    interval: int,
) -> None:
    """Who has a slot, what is loaded when, and what dummy batches drop: every step and time, wave and dummy."""
    trace, config, step_time = with_adapters(workload.trace, names), workload.config, Telling(workload.step_time)
    clients = Clients(Users(concurrency)) if concurrency else Clients()
    assert_naive_ranks_do_the_same(trace, config, step_time, loras, num_ranks, clients, interval)


@st.composite
def revisits(draw: st.DrawFn, *, with_windows: bool = False) -> tuple[Trace, SchedulerConfig]:
    """Prompts that begin alike, on few blocks: what was there is often on the CPU alone, of the same rank as of others."""
    count, num_heads = draw(st.integers(2, 14)), draw(st.integers(1, 3))
    heads = draw(st.lists(st.integers(4, 16), min_size=num_heads, max_size=num_heads))
    prompts: list[Prompt] = []
    for row in range(count):
        head, own = draw(st.integers(0, num_heads - 1)), draw(st.integers(0, 8))
        prompts.append(((head, heads[head]), (private_prompt_id(row), own)) if own else ((head, heads[head]),))
    gaps = draw(st.lists(st.sampled_from((0, 0, 1, 2, 7, 30, 100)), min_size=count, max_size=count))
    trace = Trace(
        request_id=tuple(f"r{row}" for row in range(count)),
        arrival_s=np.cumsum(gaps).astype(np.float64),
        prompt_tokens=np.array([sum(tokens for _, tokens in prompt) for prompt in prompts], dtype=np.int64),
        output_tokens=np.array(draw(st.lists(st.integers(1, 12), min_size=count, max_size=count)), dtype=np.int64),
        segments=prompts,
    )
    config = tight_config(
        draw,
        trace,
        least_spare=4,
        scheduler_reserve_full_isl=st.booleans(),
        kv_offloading_size=st.just(1.0),
        enable_prefix_caching=st.sampled_from((True, True, True, False)),
    )
    kinds = (*GROUPS, *STATEFUL)
    return trace, draw(with_groups(config, kinds)) if with_windows and config.engine.enable_prefix_caching else config


@examples(200)
@given(
    workload=revisits(with_windows=True),
    step_time=step_times,
    tier=tiers,
    loras=st.none() | LORAS,
    names=names,
    num_ranks=st.integers(1, 3),
    concurrency=st.none() | st.integers(1, 4),
    interval=st.sampled_from([1, 1, 3]),
    looks=st.tuples(st.sampled_from([1, 3, 16]), st.booleans()),
)
def test_ranks_with_a_cpu_tier(
    workload: tuple[Trace, SchedulerConfig],
    step_time: RecordedStepTime,
    tier: OffloadConfig,
    loras: naive.Loras | None,
    names: list[str],
    *,
    num_ranks: int,
    concurrency: int | None,
    interval: int,
    looks: tuple[int, bool],
) -> None:
    """Who waits for a load beside ranks that go on, when it is told of, and what is stored meanwhile: every step and time, wave and dummy."""
    trace, config = workload
    if loras is not None:
        trace = with_adapters(trace, names)
    clients = Clients(Users(concurrency)) if concurrency else Clients()
    try:
        with patch.object(vain_calls, "MOST_VAIN_LOADS", 100):
            assert_naive_ranks_do_the_same(
                trace, config, Telling(step_time), loras, num_ranks, clients, interval, tier=tier, looks=looks
            )
    except ConfigError as error:
        assume("for ever" not in str(error) and "again and again" not in str(error))
        raise


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("looks", [(1, True), (3, True), (16, True)])
@pytest.mark.parametrize("clients", [AT_THEIR_TIMES, Clients(max_concurrency=5)])
def test_stores_go_on_while_ranks_idle(*, async_scheduling: bool, looks: tuple[int, bool], clients: Clients) -> None:
    """Without a prefix cache on the GPU whoever comes again waits for the store of what was there before, by dummy steps or polls, and loads it."""
    config = make_config(
        num_gpu_blocks=20, block_size=2, async_scheduling=async_scheduling, enable_prefix_caching=False
    )
    config = changed(config, kv_offloading_size=1.0)
    tier = OffloadConfig(8, 7, 1, 25, 1, reports_at_start=True, block_bytes=10)
    for arrival_s in (*range(30, 45), 60.0, 60.5):
        trace = workload_trace([0.0, arrival_s], segments=[((1, 8), (2, 1)), ((1, 8), (3, 1))], output_tokens=[2, 2])
        assert_naive_ranks_do_the_same(trace, config, ONE_SECOND, None, 1, clients, tier=tier, looks=looks)


def assert_naive_ranks_do_the_same(
    trace: Trace,
    config: SchedulerConfig,
    step_time: StepTimeModel,
    loras: naive.Loras | None,
    num_ranks: int,
    clients: Clients = AT_THEIR_TIMES,
    interval: int = 1,
    *,
    tier: OffloadConfig | None = None,
    looks: tuple[int, bool] = (16, True),
) -> None:
    rules, router = LockStepRules(*looks, prefill_interval=interval), "vllm_dp:interval_s=7"
    modes = Modes(
        lora=LoraSlots(*astuple(loras)) if loras else None,
        offload=tier,
        idle_sleep_s=POLLING_S if tier else 0.0,
        throttle_interval=interval if interval > 1 else 0,
    )
    theirs = with_cpu_tier(config, tier, POLLING_S) if tier else naive.PLAIN
    plan = FleetPlan.alike(config, step_time, num_ranks, router, modes=modes, lock_step=rules)
    found = simulate(trace, plan, clients=clients)
    expected, ranks = simulate_lock_step(
        trace,
        config,
        step_time,
        num_ranks=num_ranks,
        router=router,
        clients=clients,
        sync_interval=looks[0],
        looks_at_once=looks[1],
        prefill_interval=interval,
        modes=replace(theirs, loras=loras),
    )
    assert_same_run(found, expected)
    (records,) = found.ranks
    assert (records.dummy_steps, records.num_waves) == (ranks.num_dummies, ranks.num_waves)


def test_a_pass_that_only_preempts_is_a_dummy() -> None:
    """Whom the last blocks are taken from preempts itself, and nothing runs: the adapters are dropped."""
    config = make_config(
        num_gpu_blocks=8, block_size=1, max_num_seqs=2, scheduling_policy="priority", async_scheduling=False,
        scheduler_reserve_full_isl=False, enable_prefix_caching=False,
    )  # fmt: skip
    trace = make_trace([Ask(str(row), 1, output) for row, output in enumerate((1, 1, 1, 5, 6, 1))])
    trace = with_adapters(trace, ["a"] * 6)
    assert_naive_ranks_do_the_same(trace, config, Telling(ONE_SECOND), naive.Loras(1, 1, 2, 3, 5), 1)


MOE = "Qwen3-30B-A3B"
RANKS = sim.EngineConfig(data_parallel_size=2, enable_lora=True, max_model_len=4096)


def test_an_idle_rank_makes_adapters_and_forgets_its_own() -> None:
    """A lone answer of ten tokens waits for the other rank's host at every step but the first, in which real ones have the dummies' names.

    A minute later the other rank serves the same adapter, which it has to read, while the first one makes its own.
    """
    asked = workload_trace([0.0, 60.0], prompt_tokens=[100] * 2, output_tokens=[10] * 2, lora_name=("a", "a"))
    found = sim.simulate(MOE, "h100-sxm", asked, engine=RANKS, intervals=False)
    slots = found.deployment.modes.lora
    assert slots is not None
    first, second = found.requests["finish_s"] - found.requests["arrival_s"]
    steps = found.steps
    steps_s = (steps["end_s"] - steps["start_s"]).iloc[:10].sum()
    assert first == pytest.approx(steps_s + slots.copy_s + 9 * slots.dummy_s, rel=0.15)
    assert second - first == pytest.approx(slots.read_s, rel=0.02)
    assert found.summary["lora"] == {
        "num_loads": 2,
        "num_reads": 1,
        "load_s": pytest.approx(2 * slots.copy_s + slots.read_s),
    }
    assert f"all ranks wait about {slots.dummy_s:.2g} s" in found.summary["notes"][-1]


def test_dummies_are_of_rank_8_at_most() -> None:
    """Half the bytes of adapters of rank 16, of which a host makes a gigabyte a second; none is made of rank 1 but as asked."""
    at_16, at_8, at_1 = (deployed(max_lora_rank=rank) for rank in (16, 8, 1))
    assert at_16.dummy_s == at_8.dummy_s == pytest.approx(8 * at_1.dummy_s)
    plan = deploy(MOE, "h100-sxm", RANKS).plan
    plain = deploy(MOE, "h100-sxm", sim.EngineConfig(data_parallel_size=2, max_model_len=4096)).plan
    assert at_16.dummy_s == pytest.approx((plan.weights_bytes - plain.weights_bytes) / 2 / 1e9)


def deployed(**arguments: Any) -> LoraSlots:
    of = deploy(MOE, "h100-sxm", sim.EngineConfig(data_parallel_size=2, enable_lora=True, **arguments))
    return lora_slots(of.model, of.gpu, of.engine, of.plan.stage)


def test_adapters_beside_experts_multiply_the_tokens_of_all_ranks() -> None:
    """A rank with a token of its own takes longer by those of others; ranks that do the same take what one says by itself."""
    timed = deploy(MOE, "h100-sxm", RANKS).step_time
    plain = deploy(MOE, "h100-sxm", sim.EngineConfig(data_parallel_size=2, max_model_len=4096)).step_time
    shape = StepShape(8, 4000, (), 8)
    assert timed.agreed_s(shape, Agreement("full", 8, 16)) == pytest.approx(timed.step_s(shape), rel=1e-12)  # type: ignore[attr-defined]
    few, many = (
        [one.agreed_s(shape, Agreement("full", 8, num_all)) for one in (plain, timed)]  # type: ignore[attr-defined]
        for num_all in (16, 1600)
    )
    assert many[1] - few[1] > 1.2 * (many[0] - few[0])


def test_calls_that_the_worker_gets_alone_are_in_no_step() -> None:
    """One that preempts and computes nothing has a row in the log, between those of steps."""
    config = make_config(
        num_gpu_blocks=8, block_size=1, max_num_seqs=2, scheduling_policy="priority", async_scheduling=False,
        scheduler_reserve_full_isl=False, enable_prefix_caching=False, kv_offloading_size=1.0,
    )  # fmt: skip
    trace = make_trace([Ask(str(row), 1, output) for row, output in enumerate((1, 1, 1, 5, 6, 1))])
    tier = OffloadConfig(8, 1, 1, 1, 1, reports_at_start=True, block_bytes=10)
    modes = Modes(offload=tier, idle_sleep_s=POLLING_S)
    plan = FleetPlan.alike(config, ONE_SECOND, 1, "vllm_dp", modes=modes, lock_step=LockStepRules())
    rows: list[dict[str, Any]] = []
    simulate(trace, plan, step_log=rows.append)
    alone = [row for row in rows if "wave" not in row]
    assert [(row["n"], row["preempted"]) for row in alone] == [(0, ["3"])]
    steps = [(row["wave"], row["step"]) for row in rows if "wave" in row]
    assert len(set(steps)) == len(steps)


def test_ranks_keep_kv_in_host_memory() -> None:
    """A prompt that comes back to its rank after others have had its blocks is loaded, while the other rank decodes; its memory is the rank's own."""
    long = [((number, 4000),) for number in (1, 2, 1)]
    trace = workload_trace(
        [0.0, 0.0, 1.0, 2.0], segments=[long[0], ((9, 16),), long[1], long[2]], output_tokens=[2, 900, 2, 2]
    )
    engine = sim.EngineConfig(data_parallel_size=2, max_model_len=4096, num_gpu_blocks_override=300)
    found, plain = (
        sim.simulate(MOE, "h100-sxm", trace, engine=replace(engine, kv_offloading_size=size), intervals=False)
        for size in (2.0, None)
    )
    requests = found.requests
    assert requests["replica"].tolist() == plain.requests["replica"].tolist() == [0, 1, 0, 0]
    assert requests["num_loaded_tokens"].tolist() == [0, 0, 0, 202 * 16]
    offload = found.deployment.offload
    assert offload is not None
    assert found.summary["kv_offload"]["stored_bytes"] == (250 + 1 + 250) * offload.block_bytes
    waited_s = requests["first_scheduled_s"][3] - requests["arrival_s"][3]
    copied_s = 202 * offload.load_block_s
    assert (
        copied_s < waited_s < copied_s + 4 * 0.007
    )  # steps of the other rank's decodes: it came within one, and is told of behind the third
    ttft_s = [one.requests["first_token_s"][3] - 2.0 for one in (found, plain)]
    assert ttft_s[0] < ttft_s[1]
    assert found.summary["num_waves"] == 1
