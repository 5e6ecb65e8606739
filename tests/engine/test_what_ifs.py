"""What vLLM is compared with: static batching, contiguous KV caches, the shortest job first."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim
from sim.deployment import deploy
from sim.errors import ConfigError
from sim.measure.likeness import traits_of
from sim.specs.serve_command import serve_command
from sim.steptime.linear import LinearStepTime

A_STEP = LinearStepTime(base_s=0.01, per_token_s=0.0, per_context_token_s=0.0)
FOUR_OUTPUTS = [50, 50, 100, 55]


def run(outputs: list[int], prompts: int | list[int] = 10, **engine: Any) -> sim.Result:
    """All at once, on steps of 10 ms."""
    requests = pd.DataFrame({"arrival_s": [0.0] * len(outputs), "prompt_tokens": prompts, "output_tokens": outputs})
    given = sim.EngineConfig(**{"async_scheduling": False, **engine})
    return sim.simulate("Llama-3.1-8B", "h100-sxm", requests, engine=given, step_time_model=A_STEP, intervals=False)


def test_a_static_batch_uses_63_75_per_cent_of_its_seats() -> None:
    """Four answers of 50, 50, 100 and 55 tokens in 100 steps; the next four begin at 1 s. Continuous batching has them in 1.55 s."""
    static, continuous = (run(FOUR_OUTPUTS * 2, max_num_seqs=4, batching=how) for how in ("static", "continuous"))
    assert static.steps["num_running"][:100].mean() / 4 == 0.6375
    assert static.requests["first_scheduled_s"].round(6).tolist() == [0.0] * 4 + [1.0] * 4
    assert (static.summary["duration"], continuous.summary["duration"]) == (pytest.approx(2.0), pytest.approx(1.55))
    assert continuous.requests["first_scheduled_s"][4] == pytest.approx(0.5)
    assert "batching static is a what-if: no vLLM has it." in static.summary["notes"]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 4), st.booleans())
def test_static_batches_begin_when_the_one_before_has_finished(outputs: list[int], seats: int, is_async: bool) -> None:
    """All of a batch is scheduled with its first, in order of arrival, and after the last answer of the batch before."""
    rows = run(outputs, max_num_seqs=seats, batching="static", async_scheduling=is_async).requests
    begins, ends = rows["first_scheduled_s"].to_numpy(), rows["finish_s"].to_numpy()
    for first in range(0, len(outputs), seats):
        batch = slice(first, first + seats)
        assert len(np.unique(begins[batch])) == 1
        if first:
            assert begins[first] >= ends[first - seats : first].max()


def test_members_of_a_static_batch_come_back_when_they_were_preempted() -> None:
    """Two answers that do not fit together beside each other: the second is computed again before the third may come."""
    rows = run(
        [60, 60, 5], [30, 30, 10], max_num_seqs=2, batching="static", num_gpu_blocks_override=9, max_model_len=100
    ).requests
    assert rows["num_preemptions"].tolist() == [0, 1, 0]
    assert rows["first_scheduled_s"][2] >= rows["finish_s"][:2].max()


@pytest.mark.parametrize(("how", "blocks", "efficiency"), [("contiguous", 64, 0.146), ("paged", 11, 0.852)])
def test_two_sequences_of_100_and_50_tokens(how: str, blocks: int, efficiency: float) -> None:
    """With 512 tokens reserved for each 150 of 1,024 are used; in blocks of 16 it is 150 of 176."""
    config = {"max_model_len": 512, "num_gpu_blocks_override": 65, "kv_allocation": how}
    found = run([1, 1], [100, 50], **config)
    used = found.summary["max_kv_cache_usage"] * 64
    assert used == pytest.approx(blocks)
    assert 150 / (used * 16) == pytest.approx(efficiency, abs=5e-4)
    assert run([10] * 12, 40, **config).steps["num_running"].max() == (2 if how == "contiguous" else 12)


def test_a_contiguous_cache_shares_nothing() -> None:
    """Prefix caching is off, and cannot be asked for; whoever is in is never preempted."""
    assert not deploy(
        "Llama-3.1-8B", "h100-sxm", sim.EngineConfig(kv_allocation="contiguous")
    ).engine.enable_prefix_caching
    with pytest.raises(ConfigError, match="kv_allocation contiguous shares nothing"):
        sim.EngineConfig(kv_allocation="contiguous", enable_prefix_caching=True)
    found = run([100] * 9, 200, kv_allocation="contiguous", max_model_len=320, num_gpu_blocks_override=64)
    assert found.summary["num_preemptions"] == 0
    assert found.steps["num_running"].max() == 3


def test_the_shortest_job_is_served_first() -> None:
    """Prompt and answer count; the mean wait falls, the longest does not."""
    outputs = [90, 10, 50, 30]
    served = {
        policy: run(outputs, [10, 10, 10, 20], max_num_seqs=1, scheduling_policy=policy).requests["first_scheduled_s"]
        for policy in ("fcfs", "sjf")
    }
    assert np.argsort(served["sjf"]).tolist() == [1, 3, 2, 0]
    assert np.argsort(served["fcfs"]).tolist() == [0, 1, 2, 3]
    assert served["sjf"].mean() < served["fcfs"].mean()


def test_what_no_vllm_has_stands_in_no_command() -> None:
    """It is named behind it; a forecast with it is like no measured run."""
    engine = sim.EngineConfig(batching="static", scheduling_policy="sjf", max_num_seqs=8)
    line = serve_command("m", engine)
    assert (
        line == "vllm serve m --max-num-seqs 8  # without scheduling_policy sjf and batching static, which no vLLM has"
    )
    assert traits_of(deploy("Llama-3.1-8B", "h100-sxm", engine)).beside == "a what-if"
    assert sim.EngineConfig(scheduling_policy="priority").what_ifs == {}


@pytest.mark.parametrize(
    "asked", [{"batching": "static"}, {"kv_allocation": "contiguous"}, {"preemption_mode": "swap"}], ids=str
)
def test_replicas_that_hand_over_do_none_of_it(asked: dict[str, str]) -> None:
    """Engines with a role follow vLLM alone; an order of their own they may have."""
    pools = [{"name": "ahead", "role": "prefill", "engine": asked}, {"name": "behind", "role": "decode"}]
    name, value = next(iter(asked.items()))
    with pytest.raises(ConfigError, match=f"ahead: {name} {value} is simulated for replicas that serve requests whole"):
        sim.simulate("Llama-3.1-8B", "h100-sxm", "chat", limit=3, fleet={"pools": pools}, intervals=False)
