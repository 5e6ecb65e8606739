"""Pipeline stages from Python: what is asked for is what runs, and its parts add up."""

from typing import Any

import numpy as np
import pytest

import sim
from sim.deployment import deploy
from sim.errors import ConfigError
from sim.measure.likeness import traits
from sim.specs.hardware import load_gpu
from sim.specs.models import load_model
from sim.specs.vllm import resolve_engine


def run(fleet: Any = None, **arguments: Any) -> Any:
    given = {"pipeline_parallel_size": 2} | arguments
    return sim.simulate(
        "Llama-3.1-8B",
        "h100-sxm",
        "chat",
        engine=sim.EngineConfig(**given),
        fleet=fleet,
        limit=80,
        rate_scale=4,
        intervals=False,
    )


def test_a_run_says_its_stages_and_their_bubbles() -> None:
    """In the summary, in its title and in its table; a run of one stage says nothing of it."""
    found, plain = run(tensor_parallel_size=2), run(pipeline_parallel_size=1)
    assert (found.summary["tensor_parallel_size"], found.summary["pipeline_parallel_size"]) == (2, 2)
    first, last = found.summary["stage_bubble_shares"]
    assert 0 < found.summary["pipeline_bubble_share"] == (first + last) / 2 < 1
    assert "Llama-3.1-8B on 4 x h100-sxm in 2 stages" in str(found)
    assert f"Pipeline bubbles (%):{found.summary['pipeline_bubble_share'] * 100:>25.2f}".split() == next(
        line.split() for line in str(found).splitlines() if "bubbles" in line
    )
    assert not {"pipeline_parallel_size", "pipeline_bubble_share", "stage_bubble_shares"} & plain.summary.keys()


def test_steps_on_several_stages_overlap_and_their_parts_add_up() -> None:
    """A step is its kernels and what is left; the engine is busy no longer than the run lasts."""
    found = run()
    steps = found.steps
    durations_s = steps.end_s - steps.start_s
    np.testing.assert_allclose(steps.prefill_s + steps.decode_s + steps.host_s, durations_s, rtol=1e-9, atol=1e-12)
    assert (steps.host_s > 0).all()
    assert (steps.start_s.to_numpy()[1:] < steps.end_s.to_numpy()[:-1]).any()
    assert durations_s.sum() > found.records.leaps.busy_s
    assert 0 < found.summary["gpu_busy_fraction"] <= 1
    assert found.summary["memory_bandwidth_utilization"] < 1


def test_replicas_and_pools_with_stages() -> None:
    """Bubbles are those of all replicas; pools with other numbers of stages have none in common."""
    alike = sim.simulate(
        "Llama-3.1-8B",
        "h100-sxm",
        "chat",
        engine=sim.EngineConfig(pipeline_parallel_size=2),
        replicas=2,
        limit=60,
        intervals=False,
    )
    assert alike.summary["completed"] == 60
    assert len(alike.summary["stage_bubble_shares"]) == 2
    unlike = run({"pools": [{"engine": {"pipeline_parallel_size": 3}}, {"engine": {"pipeline_parallel_size": 1}}]})
    assert unlike.summary["pipeline_parallel_size"] is None
    assert "pipeline_bubble_share" not in unlike.summary
    three, one = unlike.summary["pools"]
    assert (three["pipeline_parallel_size"], len(three["stage_bubble_shares"])) == (3, 3)
    assert not {"pipeline_parallel_size", "pipeline_bubble_share"} & one.keys()


def test_a_slow_replica_has_slow_stages() -> None:
    """A fault that makes steps take three times as long does so on every stage."""
    slow = {"pools": [{}], "faults": [{"at_s": 0, "replica": 0, "for_s": 1e6, "slow": 3}]}
    ratio = run(slow).summary["mean_tpot_ms"] / run().summary["mean_tpot_ms"]
    assert 2.5 < ratio < 4


def test_stages_in_pools_with_a_role_are_refused() -> None:
    """vLLM hands KV over between engines of one stage."""
    pools = [{"name": "p", "role": "prefill", "engine": {"pipeline_parallel_size": 2}}, {"name": "d", "role": "decode"}]
    with pytest.raises(ConfigError, match="p: KV is handed over between engines of one stage"):
        run({"pools": pools}, pipeline_parallel_size=1)


@pytest.mark.parametrize(
    ("ranks", "stages", "said", "layout"),
    [
        (8, 1, (), "one node"),
        (4, 2, (), "pipeline stages"),
        (
            8,
            2,
            ("16 GPUs take more than one node of 8 h100-sxm: stages send over",),
            "pipeline stages over several nodes",
        ),
        (16, 1, ("tensor_parallel_size 16 takes 2 nodes of 8 h100-sxm: every all-reduce crosses",), "several nodes"),
    ],
)
def test_what_crosses_the_network_is_said(ranks: int, stages: int, said: tuple[str, ...], layout: str) -> None:
    """And that nobody has measured such layouts."""
    model, gpu = load_model("Llama-3.1-70B"), load_gpu("h100-sxm")
    given = sim.EngineConfig(tensor_parallel_size=ranks, pipeline_parallel_size=stages)
    notes = deploy(model, gpu, given).notes
    assert [note.startswith(start) for note, start in zip(notes, said, strict=True)] == [True] * len(said)
    assert traits(model, gpu, resolve_engine(given, model, gpu)).layout == layout


def test_a_search_over_ranks_and_stages() -> None:
    """Every layout is tried, with its GPUs; those that fit are ranked, and the winner has its `vllm serve` line."""
    sizes = ("tensor_parallel_size", "pipeline_parallel_size")
    found = sim.optimize(
        "Llama-3.1-8B", "l4", "chat", space={size: [1, 2] for size in sizes}, limit=40,
        engine=sim.EngineConfig(max_model_len=8192), intervals=False,
    )  # fmt: skip
    tried = {tuple(one["engine"].get(size) or 1 for size in sizes): one for one in found.summary["candidates"]}
    assert {layout: one["num_gpus"] for layout, one in tried.items()} == {(1, 1): 1, (1, 2): 2, (2, 1): 2, (2, 2): 4}
    assert tried[1, 2]["feasible"]
    given, command = found.best["engine"], found.best["serve_command"]
    assert all((f"--{size.replace('_', '-')} 2" in command) == (given.get(size) == 2) for size in sizes)


def test_the_capacity_of_stages() -> None:
    """A rate, the GPUs that it takes, and the line that starts them."""
    found = sim.capacity(
        "Llama-3.1-8B",
        "l4",
        "chat",
        slo=["tpot_p99=200ms"],
        limit=40,
        engine=sim.EngineConfig(pipeline_parallel_size=2, max_model_len=8192),
        intervals=False,
    )
    assert found.summary["num_gpus"] == 2
    assert found.summary["max_request_rate"] > 0
    assert "--pipeline-parallel-size 2" in found.summary["serve_command"]
