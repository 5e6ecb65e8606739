"""Ranks in lock step that leap do what naive ones do, step by step."""

from dataclasses import dataclass
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.clients import Clients
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.simulation import simulate
from sim.cluster.users import Users
from sim.engine import leaps
from sim.engine.rank_group import LockStepRules
from sim.engine.rank_steps import DualBatches
from sim.engine.walking.modes import PLAIN, Modes
from sim.steptime.graphs import GraphDispatch
from sim.steptime.linear import LinearDecodeCurve
from sim.steptime.protocol import Agreement, DecodeCurve, StepShape
from tests.cluster.test_clusters_agree import assert_same_run, panel_bits
from tests.conformance.case import RecordedStepTime
from tests.engine.test_engines_agree import Telling
from tests.makers import ONE_SECOND, Ask, make_config, make_trace
from tests.properties import engine_examples as examples
from tests.reference.lockstep import simulate_lock_step
from tests.workloads import SINCE_0_12, Workload, workloads

DISPATCH = GraphDispatch("FULL_AND_PIECEWISE", (1, 2, 4, 8, 16), max_num_seqs=6)


@dataclass(frozen=True)
class AgreedTime:
    """Step times of ranks that pad, and whose tokens cost each other something."""

    own: RecordedStepTime
    per_other_ns: float

    def step_s(self, shape: StepShape) -> float:
        return self.own.step_s(shape)

    def agreed_s(self, shape: StepShape, agreed: Agreement) -> float:
        padding = max(0, agreed.num_tokens - shape.num_tokens)
        differs = (agreed.graph == "none") + 2 * (agreed.num_ubatches - 1)
        return (
            self.own.step_s(shape)
            + self.own.per_token_ns * padding
            + self.per_other_ns * agreed.num_all_tokens
            + differs
        )

    def decode_curve(self, num_decodes: int) -> DecodeCurve:
        return self.own.decode_curve(num_decodes)

    def agreed_curve(self, num_decodes: int, agreement: Agreement) -> DecodeCurve:
        at_0 = self.agreed_s(StepShape(num_decodes, 0, (), num_decodes), agreement)
        return LinearDecodeCurve(at_0, self.own.per_ctx_ns)


@examples(300)
@given(
    workload=workloads(versions=SINCE_0_12),
    num_ranks=st.integers(1, 4),
    concurrency=st.none() | st.integers(1, 8),
    delay_s=st.sampled_from([0.0, 1.0, 17.0]),
    looks=st.tuples(st.sampled_from([1, 3, 16]), st.booleans()),
    per_other_ns=st.none() | st.integers(0, 2),
    thresholds=st.none() | st.tuples(st.integers(2, 5), st.integers(2, 9)),
    interval_s=st.sampled_from([7, 50]),
    panel_bits=panel_bits,
)
def test_ranks_that_leap(
    workload: Workload,
    num_ranks: int,
    concurrency: int | None,
    delay_s: float,
    looks: tuple[int, bool],
    per_other_ns: int | None,
    *,
    thresholds: tuple[int, int] | None,
    interval_s: int,
    panel_bits: tuple[int, ...],
) -> None:
    """Async or not, padded or not, split or not, under open and closed loops: who served whom, every step, gap and dummy batch."""
    trace, config = workload.trace, workload.config
    step_time = Telling(workload.step_time) if per_other_ns is None else AgreedTime(workload.step_time, per_other_ns)
    dispatch = None if per_other_ns is None else DISPATCH
    clients = Clients(Users(concurrency, delay_s)) if concurrency else Clients()
    router = f"vllm_dp:interval_s={interval_s}"
    rules = LockStepRules(*looks, dispatch=dispatch, dbo=thresholds and DualBatches(*thresholds))
    with patch.object(leaps, "PANEL_BITS", panel_bits):
        plan = FleetPlan.alike(config, step_time, num_ranks, router, lock_step=rules)
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
        dispatch=dispatch,
        dbo=thresholds,
    )
    assert_same_run(found, expected)
    (records,) = found.ranks
    assert (records.dummy_steps, records.num_waves, records.num_split_steps) == (
        ranks.num_dummies,
        ranks.num_waves,
        ranks.num_split_steps,
    )


@examples(100)
@given(
    workload=workloads(versions=SINCE_0_12),
    num_ranks=st.integers(1, 4),
    interval=st.integers(2, 5),
    concurrency=st.none() | st.integers(1, 8),
)
def test_prefills_in_step(workload: Workload, num_ranks: int, interval: int, concurrency: int | None) -> None:
    """With a `prefill_schedule_interval`."""
    trace, config, step_time = workload[0], workload[1], Telling(workload[2])
    clients = Clients(Users(concurrency)) if concurrency else Clients()
    rules, router = LockStepRules(prefill_interval=interval), "vllm_dp:interval_s=7"
    modes = Modes(throttle_interval=interval) if interval > 1 else PLAIN
    plan = FleetPlan.alike(config, step_time, num_ranks, router, modes=modes, lock_step=rules)
    found = simulate(trace, plan, clients=clients)
    expected, _ = simulate_lock_step(
        trace, config, step_time, num_ranks=num_ranks, router=router, clients=clients, prefill_interval=interval
    )
    assert_same_run(found, expected)


@pytest.mark.parametrize("modes", [PLAIN, Modes(throttle_interval=2)])
def test_a_dummy_batch_after_a_preemption_is_no_step(modes: Modes) -> None:
    """Whom the last blocks are taken from preempts itself, and nothing runs: that pass of 4 s is in no step's time.

    Be it an engine that leaps, or one whose prefills wait for each other.
    """
    config = make_config(
        num_gpu_blocks=8, block_size=1, max_num_seqs=2, scheduling_policy="priority", async_scheduling=False,
        scheduler_reserve_full_isl=False, enable_prefix_caching=False,
    )  # fmt: skip
    trace = make_trace([Ask(str(row), 1, output) for row, output in enumerate((1, 1, 1, 5, 6, 1))])
    rules = LockStepRules(prefill_interval=modes.throttle_interval or 1)
    plan = FleetPlan.alike(config, Telling(ONE_SECOND), 1, "vllm_dp", modes=modes, lock_step=rules)
    found = simulate(trace, plan).merged
    assert found.leaps.num_ran_steps < len(found.leaps)
    assert found.leaps.busy_s == (found.steps.end_s - found.steps.start_s).sum()
