"""Replicas with pipeline stages do what naive ones do, alone and behind routers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.clients import AT_THEIR_TIMES, Clients
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.simulation import simulate
from sim.engine.config import SchedulerConfig
from sim.engine.walking.modes import Modes
from sim.metrics.pipeline import pipeline_figures
from sim.steptime.perturbed import ScaledCurve
from sim.steptime.protocol import DecodeCurve, StepShape, StepTimeModel
from sim.workload.trace import Trace
from tests.cluster.test_clusters_agree import assert_same_run
from tests.configs import changed, scheduler_config
from tests.conformance.case import RecordedStepTime
from tests.engine.test_engines_agree import Telling
from tests.makers import ONE_SECOND, Ask, make_trace
from tests.properties import engine_examples as examples
from tests.reference.cluster import simulate_cluster
from tests.reference.modes import Pipeline
from tests.workloads import GROUPS, STATEFUL, step_times, tight_config, traces, with_groups

ROUTERS = ("round_robin", "least_loaded", "llm_d:scrape_interval_s=7,lru_blocks=3", "llm_d_precise:queue=0,kv=0")


@dataclass(frozen=True, slots=True)
class Staged:
    """Stages that take so many times what a step takes, and messages that are all alike."""

    whole: StepTimeModel
    multipliers: Sequence[int]
    message_s: float

    def step_s(self, shape: StepShape) -> float:
        return self.whole.step_s(shape)

    def decode_curve(self, num_decodes: int) -> DecodeCurve:
        return self.whole.decode_curve(num_decodes)

    def stage_s(self, stage: int, shape: StepShape) -> float:
        return self.whole.step_s(shape) * self.multipliers[stage]

    def stage_curve(self, stage: int, num_decodes: int) -> DecodeCurve:
        return ScaledCurve(self.whole.decode_curve(num_decodes), self.multipliers[stage])

    def hop_s(self, stage: int, shape: StepShape) -> float:  # noqa: ARG002 - all alike
        return self.message_s


def multiplied(multipliers: Sequence[int], step_s: float) -> Sequence[float]:
    return [step_s * multiplier for multiplier in multipliers]


@st.composite
def workloads(draw: st.DrawFn) -> tuple[Trace, SchedulerConfig]:
    """Few blocks, so that requests in flight are preempted; one KV group or several, with windows or without."""
    trace = draw(traces())
    policies = st.sampled_from(("fcfs", "priority"))
    config = tight_config(draw, trace, least_spare=2, scheduling_policy=policies, enable_prefix_caching=st.booleans())
    rules = replace(config.engine.rules, paces_decodes=draw(st.booleans()))
    return trace, draw(with_groups(changed(config, rules=rules), (*GROUPS, *STATEFUL)))


@examples(100)
@given(
    workload=workloads(),
    step_time=step_times,
    multipliers=st.lists(st.integers(0, 3), min_size=2, max_size=4).filter(any),
    message_s=st.integers(0, 3),
    num_replicas=st.integers(1, 3),
    router=st.sampled_from(ROUTERS),
    clients=st.sampled_from((AT_THEIR_TIMES, Clients(max_concurrency=3))),
)
def test_replicas_with_stages(
    workload: tuple[Trace, SchedulerConfig],
    step_time: RecordedStepTime,
    multipliers: list[int],
    message_s: int,
    num_replicas: int,
    router: str,
    clients: Clients,
) -> None:
    """The same steps and times; stages run as long, and overlap as much."""
    trace, config = workload
    timed, modes = Staged(Telling(step_time), multipliers, message_s), Modes(num_stages=len(multipliers))
    found = simulate(trace, FleetPlan.alike(config, timed, num_replicas, router, modes=modes), clients=clients)
    expected = simulate_cluster(
        trace,
        config,
        timed,
        num_replicas=num_replicas,
        router=router,
        clients=clients,
        pipeline=Pipeline(len(multipliers), partial(multiplied, multipliers), message_s),
    )
    assert_same_run(found, expected)
    for mine, naive in zip(found.replicas, expected.replicas, strict=True):
        assert mine.stage_busy_s == (naive.stage_busy_s or (0.0,) * len(multipliers))
    shares = pipeline_figures(found.merged).get("stage_bubble_shares", [])
    assert all(0 <= share <= 1 for share in shares)


@pytest.mark.parametrize(("message_s", "idle"), [(0.0, 1 / 2), (0.5, 3 / 5)])
def test_a_lone_request_leaves_all_stages_idle_but_one(message_s: float, idle: float) -> None:
    """Two stages of a second each take turns, and both wait for the message."""
    config = scheduler_config(async_scheduling=False)
    timed, modes = Staged(ONE_SECOND, (1, 1), message_s), Modes(num_stages=2)
    found = simulate(make_trace([Ask("A", 8, 5)]), FleetPlan.alike(config, timed, modes=modes)).merged
    assert pipeline_figures(found) == {
        "pipeline_bubble_share": pytest.approx(idle),
        "stage_bubble_shares": [pytest.approx(idle)] * 2,
    }
