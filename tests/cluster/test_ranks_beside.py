"""Ranks in lock step with adapters, against naive ones and in numbers."""

from dataclasses import astuple
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim
from sim.cluster.adapters import lora_slots
from sim.cluster.clients import AT_THEIR_TIMES, Clients
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.simulation import simulate
from sim.cluster.users import Users
from sim.deployment import deploy
from sim.engine.config import SchedulerConfig
from sim.engine.rank_group import LockStepRules
from sim.engine.walking.modes import Modes
from sim.specs.lora import LoraSlots
from sim.steptime.protocol import Agreement, StepShape, StepTimeModel
from sim.workload.trace import Trace
from tests.cluster.test_clusters_agree import assert_same_run
from tests.engine.test_engines_agree import Telling
from tests.engine.test_modes_agree import LORAS, with_adapters
from tests.makers import ONE_SECOND, Ask, make_config, make_trace
from tests.properties import engine_examples as examples
from tests.reference import modes as naive
from tests.reference.lockstep import simulate_lock_step
from tests.workload.makers import make_trace as workload_trace
from tests.workloads import SINCE_0_12, Workload, workloads

names = st.lists(st.sampled_from(("", "a", "b", "c")), min_size=10, max_size=10)


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


def assert_naive_ranks_do_the_same(
    trace: Trace,
    config: SchedulerConfig,
    step_time: StepTimeModel,
    loras: naive.Loras,
    num_ranks: int,
    clients: Clients = AT_THEIR_TIMES,
    interval: int = 1,
) -> None:
    rules, router = LockStepRules(prefill_interval=interval), "vllm_dp:interval_s=7"
    modes = Modes(lora=LoraSlots(*astuple(loras)), throttle_interval=interval if interval > 1 else 0)
    plan = FleetPlan.alike(config, step_time, num_ranks, router, modes=modes, lock_step=rules)
    found = simulate(trace, plan, clients=clients)
    expected, ranks = simulate_lock_step(
        trace,
        config,
        step_time,
        num_ranks=num_ranks,
        router=router,
        clients=clients,
        prefill_interval=interval,
        modes=naive.Modes(loras=loras),
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
