"""`--data-parallel-size` of a dense model: one server's engines behind vLLM's balancer."""

from typing import Any

import pytest

import sim
from sim.errors import ConfigError
from sim.specs.serve_command import serve_command
from tests.workload.makers import make_trace

TRACE = make_trace([0.1 * number for number in range(40)], prompt_tokens=[500] * 40, output_tokens=[50] * 40)


def served(**arguments: Any) -> sim.EngineConfig:
    return sim.EngineConfig(max_model_len=4096, **arguments)


def test_engines_of_a_server_are_replicas_behind_its_balancer() -> None:
    """Request for request, and as many GPUs."""
    ranks = sim.simulate("Llama-3.1-8B", "l4", TRACE, engine=served(data_parallel_size=4), intervals=False)
    replicas = sim.simulate("Llama-3.1-8B", "l4", TRACE, engine=served(), replicas=4, router="vllm_dp", intervals=False)
    assert ranks.requests.equals(replicas.requests)
    assert ranks.summary["fleet"]["router"] == "vllm_dp"
    assert ranks.summary["cost_usd"] == replicas.summary["cost_usd"]
    assert (
        serve_command("M", served(data_parallel_size=4)) == "vllm serve M --data-parallel-size 4 --max-model-len 4096"
    )


@pytest.mark.parametrize(
    ("model", "more", "message"),
    [
        ("Llama-3.1-8B", {"replicas": 2}, "simulated for one server: ask for 2 times as many replicas, behind router"),
        ("Llama-3.1-8B", {"router": "random"}, "is simulated for one server"),
        ("Llama-3.1-8B", {"fleet": {"pools": [{"name": "all"}]}}, "all: data_parallel_size 2 is simulated for one"),
        ("Qwen3-30B-A3B", {}, "simulated for dense models alone"),
    ],
)
def test_what_is_not_simulated_is_refused(model: str, more: dict[str, Any], message: str) -> None:
    """Servers of several engines behind a router, and experts, whose engines wait for each other."""
    with pytest.raises(ConfigError, match=message):
        sim.simulate(model, "h100-sxm", TRACE, engine=served(data_parallel_size=2), intervals=False, **more)
