"""Ranks with pipeline stages in lock step do what naive ones do, each of which goes round vLLM's loop by itself."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.clients import Clients
from sim.cluster.fleet_plan import FleetPlan, Pool, ServerPlan
from sim.cluster.simulation import simulate
from sim.cluster.users import Users
from sim.engine.config import SchedulerConfig
from sim.engine.rank_group import LockStepRules
from sim.engine.walking.modes import Modes
from sim.specs.engine import batches_in_flight
from sim.steptime.perturbed import ScaledCurve
from sim.steptime.protocol import Agreement, DecodeCurve, StepShape
from sim.workload.trace import Trace
from tests.cluster.test_clusters_agree import assert_same_run
from tests.cluster.test_lock_step_agrees import DISPATCH, AgreedTime
from tests.cluster.test_parallel_sampling import assert_same_answers, prompts
from tests.cluster.test_pipeline_agrees import Staged, workloads
from tests.cluster.test_queue_limits import limits
from tests.cluster.test_servers_agree import ROUTERS, balancers, layouts, some_load
from tests.configs import changed
from tests.conformance.case import RecordedStepTime
from tests.engine.test_engines_agree import Telling
from tests.properties import engine_examples as examples
from tests.reference import modes as reference
from tests.reference.servers import simulate_servers
from tests.reference.staged_ranks import StagedTimes, simulate_staged
from tests.workloads import SINCE_0_12, configs, step_times


@dataclass(frozen=True, slots=True)
class StagedRanksTime(Staged):
    """The same of ranks that pad; messages of padded tokens take longer."""

    agreed: AgreedTime

    def agreed_stage_s(self, stage: int, shape: StepShape, agreement: Agreement) -> float:
        return self.agreed.agreed_s(shape, agreement) * self.multipliers[stage]

    def agreed_stage_curve(self, stage: int, num_decodes: int, agreement: Agreement) -> DecodeCurve:
        return ScaledCurve(self.agreed.agreed_curve(num_decodes, agreement), self.multipliers[stage])

    def agreed_hop_s(self, stage: int, shape: StepShape, agreement: Agreement) -> float:
        return self.message_s + stage + (agreement.num_tokens or shape.num_tokens) // 4


def naive_times(timed: StagedRanksTime) -> StagedTimes:
    def stage_s(stage: int, shape: StepShape, agreement: Agreement | None) -> float:
        return timed.agreed_stage_s(stage, shape, agreement) if agreement else timed.stage_s(stage, shape)

    def hop_s(stage: int, shape: StepShape, agreement: Agreement | None) -> float:
        return timed.agreed_hop_s(stage, shape, agreement) if agreement else timed.hop_s(stage, shape)

    return StagedTimes(len(timed.multipliers), stage_s, hop_s)


def naive_modes(config: SchedulerConfig, modes: Modes) -> reference.Modes:
    engine = config.engine
    return reference.Modes(
        batches_in_flight(modes.num_stages, is_async=engine.async_scheduling, rules=engine.rules),
        pipeline=reference.Pipeline(modes.num_stages),
        idle_sleep_s=modes.idle_sleep_s,
        throttle_interval=modes.throttle_interval,
    )


@examples(300)
@given(
    workload=workloads(),
    step_time=step_times,
    multipliers=st.lists(st.integers(1, 3), min_size=2, max_size=4),
    message_s=st.integers(0, 3),
    num_ranks=st.integers(1, 4),
    users=st.none() | st.tuples(st.integers(1, 8), st.sampled_from([0.0, 1.0, 17.0])),
    looks=st.tuples(st.sampled_from([1, 3, 16]), st.booleans()),
    pads=st.booleans(),
    interval=st.sampled_from([1, 1, 2, 3]),
    nap_s=st.sampled_from([0.0, 1.0, 5.0]),
)
def test_ranks_with_stages(
    workload: tuple[Trace, SchedulerConfig],
    step_time: RecordedStepTime,
    multipliers: Sequence[int],
    message_s: int,
    num_ranks: int,
    users: tuple[int, float] | None,
    looks: tuple[int, bool],
    *,
    pads: bool,
    interval: int,
    nap_s: float,
) -> None:
    """Who served whom, every step, stage, gap, dummy batch and wave; with few blocks, shared prompts, prefills that wait for each other."""
    trace, config = workload
    clients = Clients(Users(*users)) if users else Clients()
    timed = StagedRanksTime(Telling(step_time), multipliers, message_s, AgreedTime(step_time, 2))
    dispatch = DISPATCH if pads else None
    throttle = interval if interval > 1 else 0
    modes = Modes(num_stages=len(multipliers), idle_sleep_s=nap_s, throttle_interval=throttle)
    rules = LockStepRules(*looks, prefill_interval=interval, dispatch=dispatch)
    plan = FleetPlan.alike(config, timed, num_ranks, "vllm_dp:interval_s=7", modes=modes, lock_step=rules)
    found = simulate(trace, plan, clients=clients)
    expected, ranks = simulate_staged(
        trace,
        config,
        naive_times(timed),
        num_ranks=num_ranks,
        modes=naive_modes(config, modes),
        router="vllm_dp:interval_s=7",
        clients=clients,
        sync_interval=looks[0],
        looks_at_once=looks[1],
        prefill_interval=interval,
        dispatch=dispatch,
    )
    assert_same_run(found, expected)
    (records,) = found.ranks
    assert (records.dummy_steps, records.num_waves) == (ranks.num_dummies, ranks.num_waves)
    for mine, naive in zip(found.replicas, expected.replicas, strict=True):
        assert mine.stage_busy_s == (naive.stage_busy_s or (0.0,) * len(multipliers))


@examples(100)
@given(
    data=st.data(),
    trace=prompts,
    step_time=step_times,
    limits=st.one_of(st.just({}), limits),
    num_servers=st.integers(1, 3),
    layout=layouts,
    router=st.sampled_from((*ROUTERS, "llm_d_precise:queue=0,kv=0")),
    balancer=balancers,
    multipliers=st.lists(st.integers(1, 3), min_size=2, max_size=3),
)
def test_servers_of_ranks_with_stages(
    data: st.DataObject,
    trace: Trace,
    step_time: RecordedStepTime,
    limits: dict[str, int],
    num_servers: int,
    layout: tuple[int, int],
    router: str,
    *,
    balancer: str,
    multipliers: Sequence[int],
) -> None:
    """Behind an address a server, a node or a rank: who has which answer, every step, dummy and wave of each server."""
    config = changed(data.draw(configs(trace, versions=SINCE_0_12)), **limits)
    trace, clients = some_load(data, trace)
    timed = StagedRanksTime(Telling(step_time), multipliers, 1, AgreedTime(step_time, 2))
    modes = Modes(num_stages=len(multipliers), idle_sleep_s=1.0)
    size, num_addresses = layout
    server = ServerPlan(size, LockStepRules(), balancer, num_addresses)
    found = simulate(
        trace,
        FleetPlan((Pool(config, timed, num_servers * size, modes=modes, server=server),), router),
        clients=clients,
    )
    ran = simulate_servers(
        trace,
        config,
        timed,
        num_servers=num_servers,
        num_engines=size,
        per_address=size // num_addresses,
        router=router,
        balancer=balancer,
        clients=clients,
        times=naive_times(timed),
        modes=naive_modes(config, modes),
        sync_interval=16,
        looks_at_once=True,
        prefill_interval=1,
        dispatch=None,
    )
    assert_same_answers(found, ran.served, trace)
    assert [(ranks.dummy_steps, ranks.num_waves) for ranks in found.ranks] == [
        (ranks.num_dummies, ranks.num_waves) for ranks in ran.ranks
    ]
