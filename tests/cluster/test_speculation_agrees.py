"""Deployments that speculate do what naive ones do, alone and behind routers, with adapters or a CPU tier, whatever is accepted."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.clients import AT_THEIR_TIMES, Clients
from sim.cluster.simulation import simulate
from sim.deployment import Deployment, deploy
from sim.engine.request import Request
from sim.engine.walking.acceptance import DrawnAcceptance
from sim.engine.walking.modes import POLLING_S
from sim.errors import ConfigError
from sim.fleet import DeployedFleet
from sim.specs.engine import EngineConfig
from sim.specs.speculative_config import SpeculativeConfig
from sim.steptime.options import StepTimeOptions
from sim.workload.trace import Trace
from tests.cluster.test_clusters_agree import assert_same_run
from tests.conformance.case import RecordedStepTime
from tests.engine.test_engines_agree import Telling
from tests.engine.test_modes_agree import derived, with_adapters
from tests.properties import engine_examples as examples
from tests.reference.cluster import Served, simulate_cluster, with_cpu_tier
from tests.reference.modes import Loras, Modes, Script
from tests.workloads import step_times, traces

BLOCK_SIZE = 8
BLOCK_GIB = 28 * 2 * 8 * 128 * 2 * BLOCK_SIZE / 2**30
"""Of Qwen3-0.6B: layers, keys and values, heads, their size, bytes. A drafter's layers come on top."""


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
    """Few seats and few blocks, here and on the CPU; rates of acceptance that fall from position to position."""
    trace, config = draw(traces()), draw(speculative_configs())
    longest = int((trace.prompt_tokens + trace.output_tokens).max())
    rates = sorted(draw(st.lists(st.floats(0, 1), min_size=4, max_size=4)), reverse=True)
    beside: dict[str, Any] = {}
    if draw(st.booleans()):
        names = draw(st.lists(st.sampled_from(("", "one", "two", "three")), min_size=len(trace), max_size=len(trace)))
        trace, beside = with_adapters(trace, names), {"enable_lora": True, "max_loras": draw(st.integers(1, 2))}
    if draw(st.booleans()):
        beside["kv_offloading_size"] = draw(st.integers(3, 40)) * BLOCK_GIB
    engine = EngineConfig(
        block_size=BLOCK_SIZE,
        max_model_len=longest + draw(st.integers(1, 4)),
        num_gpu_blocks_override=-(-longest // BLOCK_SIZE) + draw(st.integers(4, 12)),
        max_num_seqs=draw(st.integers(1, 6)),
        max_num_batched_tokens=draw(st.integers(16, 60)),
        async_scheduling=None if config["method"] != "ngram" else draw(st.sampled_from((None, False))),
        enable_prefix_caching=draw(st.booleans()),
        speculative_config=SpeculativeConfig.parse(config),
        **beside,
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

    def naively() -> Served:
        return simulate_cluster(
            trace,
            deployment.config,
            Telling(step_time),
            num_replicas=num_replicas,
            router="round_robin",
            clients=clients,
            modes=naive_modes(deployment),
            scripts=[Script(accept=counts) for counts in _drawn(trace, deployment, seed)],
        )

    try:
        found = simulate(trace, fleet.plan(seed=seed), clients=clients)
    except ConfigError:
        with pytest.raises(ConfigError, match="came to nothing"):
            naively()
        return
    expected = naively()
    assert_same_run(found, expected)
    for mine, naive in zip(found.replicas, expected.replicas, strict=True):
        assert mine.speculation == naive.speculation
        np.testing.assert_array_equal(mine.steps.num_drafts, naive.steps.num_drafts)
        np.testing.assert_array_equal(mine.steps.num_accepted, naive.steps.num_accepted)


def naive_modes(of: Deployment) -> Modes:
    """What it asks of the naive engine."""
    depth, tier, lora, speculation = of.config.num_batches_in_flight, of.offload, of.modes.lora, of.engine.speculation
    assert speculation is not None
    modes = with_cpu_tier(of.config, tier, POLLING_S) if tier else Modes(depth)
    loras = Loras(lora.max_loras, lora.max_cpu_loras, lora.copy_s, lora.read_s) if lora else None
    return replace(modes, speculation=derived(speculation, has_connector=tier is not None), loras=loras)


def _drawn(trace: Trace, deployment: Deployment, seed: int) -> list[tuple[int, ...]]:
    assert deployment.accepted is not None
    acceptance = DrawnAcceptance(deployment.accepted.rates, seed)
    lengths = zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True)
    return [tuple(acceptance.accepted(Request(row, "", 0.0, *of))) for row, of in enumerate(lengths)]
