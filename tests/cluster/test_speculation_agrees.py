"""Deployments that speculate do what naive ones do, alone and behind routers, whatever is accepted."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.clients import AT_THEIR_TIMES, Clients
from sim.cluster.simulation import simulate
from sim.deployment import Deployment, deploy
from sim.engine.request import Request
from sim.engine.walking.acceptance import DrawnAcceptance
from sim.fleet import DeployedFleet
from sim.specs.engine import EngineConfig
from sim.specs.speculative_config import SpeculativeConfig
from sim.steptime.options import StepTimeOptions
from sim.workload.trace import Trace
from tests.cluster.test_clusters_agree import assert_same_run
from tests.conformance.case import RecordedStepTime
from tests.engine.test_engines_agree import Telling
from tests.engine.test_modes_agree import derived
from tests.properties import engine_examples as examples
from tests.reference.cluster import simulate_cluster
from tests.reference.modes import Modes, Script
from tests.workloads import step_times, traces

BLOCK_SIZE = 8


@st.composite
def speculative_configs(draw: st.DrawFn) -> dict[str, Any]:
    """Every method that is simulated, one K for all batches or one by their size."""
    count = draw(st.integers(1, 4))
    method = draw(st.sampled_from(("ngram", "ngram_gpu", "eagle", "eagle3", "draft_model", "dflash")))
    config: dict[str, Any] = {"method": method, "num_speculative_tokens": count, "model": "Qwen3-0.6B"}
    if method in {"eagle", "draft_model"} and draw(st.booleans()):
        config["parallel_drafting"] = True
    if draw(st.booleans()):
        config["num_speculative_tokens_per_batch_size"] = [[1, 2, count], [3, 5, draw(st.integers(0, count))]]
    return config


@st.composite
def deployments(draw: st.DrawFn) -> tuple[Trace, Deployment, RecordedStepTime]:
    """Few seats and few blocks; rates of acceptance that fall from position to position."""
    trace, config = draw(traces()), draw(speculative_configs())
    longest = int((trace.prompt_tokens + trace.output_tokens).max())
    rates = sorted(draw(st.lists(st.floats(0, 1), min_size=4, max_size=4)), reverse=True)
    engine = EngineConfig(
        block_size=BLOCK_SIZE,
        max_model_len=longest + draw(st.integers(1, 4)),
        num_gpu_blocks_override=-(-longest // BLOCK_SIZE) + draw(st.integers(4, 12)),
        max_num_seqs=draw(st.integers(1, 6)),
        max_num_batched_tokens=draw(st.integers(16, 60)),
        async_scheduling=None if config["method"] != "ngram" else draw(st.sampled_from((None, False))),
        enable_prefix_caching=draw(st.booleans()),
        speculative_config=SpeculativeConfig.parse(config),
    )
    step_time = draw(step_times)
    options = StepTimeOptions(given=Telling(step_time), acceptance=tuple(rates))
    return trace, deploy("Qwen3-0.6B", "h100-sxm", engine, step_times=options).require_runnable(), step_time


@examples(100)
@given(
    deployed=deployments(),
    num_replicas=st.integers(1, 3),
    clients=st.sampled_from((AT_THEIR_TIMES, Clients(max_concurrency=3))),
    seed=st.integers(0, 3),
)
def test_deployments_that_speculate(
    deployed: tuple[Trace, Deployment, RecordedStepTime], num_replicas: int, clients: Clients, seed: int
) -> None:
    """The same steps, times and gaps; drafts and how many of them were accepted, step by step and in all."""
    trace, deployment, step_time = deployed
    fleet = DeployedFleet.alike(deployment, EngineConfig(), num_replicas, "round_robin")
    found = simulate(trace, fleet.plan(seed=seed), clients=clients)
    speculation = deployment.engine.speculation
    assert speculation is not None
    modes = Modes(deployment.config.num_batches_in_flight, speculation=derived(speculation))
    expected = simulate_cluster(
        trace,
        deployment.config,
        Telling(step_time),
        num_replicas=num_replicas,
        router="round_robin",
        clients=clients,
        modes=modes,
        scripts=[Script(accept=counts) for counts in _drawn(trace, deployment, seed)],
    )
    assert_same_run(found, expected)
    for mine, naive in zip(found.replicas, expected.replicas, strict=True):
        assert mine.speculation == naive.speculation
        np.testing.assert_array_equal(mine.steps.num_drafts, naive.steps.num_drafts)
        np.testing.assert_array_equal(mine.steps.num_accepted, naive.steps.num_accepted)


def _drawn(trace: Trace, deployment: Deployment, seed: int) -> list[tuple[int, ...]]:
    assert deployment.accepted is not None
    acceptance = DrawnAcceptance(deployment.accepted.rates, seed)
    lengths = zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True)
    return [tuple(acceptance.accepted(Request(row, "", 0.0, *of))) for row, of in enumerate(lengths)]
