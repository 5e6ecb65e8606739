"""A what-if: preempted requests are swapped out to host memory, and resume from there."""

from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim
from sim.deployment import deploy
from sim.engine.request import Request, RequestStatus
from sim.engine.walking.modes import Modes
from sim.engine.walking.scheduler import Scheduler
from sim.errors import ConfigError
from sim.memory.swap_space import SwapSpace
from sim.memory.transfers import copied_bytes_per_s
from sim.specs.hardware import load_gpu
from sim.specs.rules import SchedulingRules
from sim.specs.serve_command import parse_engine_args, serve_command
from sim.steptime.linear import LinearStepTime
from sim.units import GIB
from tests.configs import scheduler_config
from tests.conformance.case import Case
from tests.conformance.engines import run_reference, run_walking
from tests.engine.test_modes_agree import LORAS, derived, recorded, scripts, speculations, with_adapters
from tests.properties import engine_examples as examples
from tests.reference import modes as naive
from tests.workloads import step_times, traces

A_STEP = LinearStepTime(base_s=0.01, per_token_s=0.0, per_context_token_s=0.0)
BLOCK_BYTES = 2 * 32 * 8 * 128 * 2 * 16  # keys and values of 32 layers, 8 heads of 128 numbers of 2 bytes, 16 tokens
COPY_S = BLOCK_BYTES / copied_bytes_per_s(load_gpu("h100-sxm"))


def run(
    outputs: list[int], prompts: list[int], arrivals: list[float] | None = None, *, blocks: int = 9, **engine: Any
) -> sim.Result:
    """On steps of 10 ms and so many blocks of 16 tokens, one of them the null block."""
    columns = {"arrival_s": arrivals or [0.0] * len(outputs), "prompt_tokens": prompts, "output_tokens": outputs}
    arguments = {"async_scheduling": False, "max_model_len": 100, "num_gpu_blocks_override": blocks, **engine}
    return sim.simulate(
        "Llama-3.1-8B",
        "h100-sxm",
        pd.DataFrame(columns),
        engine=sim.EngineConfig(**arguments),
        step_time_model=A_STEP,
        intervals=False,
    )


def test_who_is_swapped_out_computes_nothing_twice() -> None:
    """Two answers of 60 tokens to prompts of 30 fill 8 blocks with 64 tokens each: with 4 blocks, the second leaves in pass 36.

    It comes back when the first has ended, after 60 steps; its 64 tokens were copied out ahead of step 36 and back ahead of
    step 61. Recomputed, they are a chunk, with the 35th token of the answer.
    """
    swapped = run([60, 60], [30, 30], preemption_mode="swap")
    recomputed = run([60, 60], [30, 30], enable_prefix_caching=False)
    assert swapped.requests["num_preemptions"].tolist() == recomputed.requests["num_preemptions"].tolist() == [0, 1]
    assert swapped.steps["num_chunk_tokens"].sum() == 60
    assert recomputed.steps["num_chunk_tokens"].sum() == 60 + 65
    found = swapped.summary
    assert (found["num_swapped_out"], found["swapped_bytes"]) == (1, 2 * 4 * BLOCK_BYTES)
    assert found["swap_s"] == pytest.approx(2 * 4 * COPY_S)
    assert found["max_swap_space_usage"] == 4 / (4 * GIB // BLOCK_BYTES)
    ends = swapped.requests["finish_s"]
    assert ends[0] == pytest.approx(60 * 0.01 + 4 * COPY_S)
    num_steps_left = 60 - 35  # of the second, which had as many tokens when it left
    assert ends[1] == pytest.approx(ends[0] + 4 * COPY_S + num_steps_left * 0.01)
    assert "num_swapped_out" not in recomputed.summary


def test_the_swapped_come_before_all_who_wait() -> None:
    """A prompt that would fit beside the first waits for the one that was swapped out; recomputed, that one is ahead of it too."""
    found = run([60, 60, 3], [30, 30, 10], [0.0, 0.0, 0.4], preemption_mode="swap", blocks=10).requests
    assert found["num_preemptions"].tolist() == [0, 1, 0]
    assert found["first_scheduled_s"][2] >= found["finish_s"][0]


def test_a_full_swap_space_recomputes() -> None:
    """Room for 3 blocks does not hold the 4 of the second."""
    space = 3.5 * BLOCK_BYTES / GIB
    full = run([60, 60], [30, 30], preemption_mode="swap", swap_space=space)
    assert full.summary["num_swapped_out"] == full.summary["swapped_bytes"] == 0
    assert full.summary["num_preemptions"] == 1
    assert full.requests["finish_s"].tolist() == pytest.approx(run([60, 60], [30, 30]).requests["finish_s"].tolist())


def test_each_gpu_copies_its_share() -> None:
    """Two GPUs have half of each block, room for twice as many, and copy one in half the time."""
    one, two = (
        deploy(
            "Llama-3.1-8B", "h100-sxm", sim.EngineConfig(preemption_mode="swap", tensor_parallel_size=size)
        ).modes.swap_space
        for size in (1, 2)
    )
    assert one
    assert two
    assert (one.num_blocks, two.num_blocks) == (2048, 4096)
    assert [one.block_copy_s, two.block_copy_s] == pytest.approx([COPY_S, COPY_S / 2])
    assert one.block_bytes == two.block_bytes == BLOCK_BYTES


@pytest.mark.parametrize(
    ("model", "arguments", "reason"),
    [
        ("Llama-3.1-8B", {"swap_space": 1e-4}, "swap_space 0.0001 GiB holds no KV block, which has 0.00195 GiB a GPU"),
        ("Llama-3.1-8B", {"swap_space": -1.0}, "swap_space must be GiB of host memory a GPU, at least 0"),
        (
            "Llama-3.1-8B",
            {"pipeline_parallel_size": 2},
            "preemption_mode swap is not simulated with pipeline_parallel_size",
        ),
        ("Llama-3.1-8B", {"batching": "static"}, "preemption_mode swap is not simulated with batching static"),
        ("Llama-3.1-8B", {"kv_offloading_size": 4.0}, "preemption_mode swap is not simulated with kv_offloading_size"),
        ("gpt-oss-20b", {}, "preemption_mode swap is simulated for models whose layers all have full attention"),
        (
            "Qwen3-30B-A3B",
            {"data_parallel_size": 2},
            "preemption_mode swap is not simulated for data-parallel ranks with experts",
        ),
    ],
)
def test_what_goes_not_with_it(model: str, arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        deploy(model, "h100-sxm", sim.EngineConfig(preemption_mode="swap", **arguments)).require_runnable()


def test_it_is_named_as_a_what_if() -> None:
    """A pasted line of an old vLLM with its swap space says that nothing is swapped; neither flag stands in a line for a new one."""
    engine = sim.EngineConfig(preemption_mode="swap", swap_space=8.0, max_num_seqs=8)
    line = "vllm serve m --max-num-seqs 8"
    assert serve_command("m", engine) == f"{line}  # without preemption_mode swap, which no vLLM has"
    pasted = parse_engine_args(["--swap-space", "8", "--max-num-seqs", "8"]).engine
    assert serve_command("m", pasted) == line
    notes = deploy("Llama-3.1-8B", "h100-sxm", pasted).notes
    assert "swap_space changes nothing here: without preemption_mode swap no request is swapped out." in notes


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Requests that hardly fit, with speculation or adapters, and swap space for some of them."""
    is_async = draw(st.booleans())
    speculation = draw(st.none() | speculations(is_async=is_async))
    trace = draw(traces(max_requests=8))
    if draw(st.booleans()):
        names = draw(st.lists(st.sampled_from(("", "one", "two", "three")), min_size=8, max_size=8))
        trace = with_adapters(trace, names)
    block_size = draw(st.integers(1, 4))
    longest = int((trace.prompt_tokens + trace.output_tokens).max())
    ahead = 8 if speculation else 0
    rules = SchedulingRules(
        counts_loras_of_all_running=draw(st.booleans()),
        steps_back=draw(st.sampled_from(("never", "scheduled", "always"))),
        refunds_preempted_tokens=draw(st.booleans()),
    )
    config = scheduler_config(
        async_scheduling=is_async,
        block_size=block_size,
        max_model_len=longest + draw(st.integers(0, 3)),
        num_gpu_blocks=1 + -(-(longest + ahead) // block_size) + draw(st.integers(0, 8)),
        max_num_seqs=draw(st.integers(1, 6)),
        max_num_batched_tokens=draw(st.integers(16, 60)),
        enable_prefix_caching=draw(st.booleans()),
        scheduling_policy=draw(st.sampled_from(("fcfs", "priority", "sjf"))),
        long_prefill_token_threshold=draw(st.sampled_from((0, 0, 5))),
        watermark=draw(st.sampled_from((0.0, 0.0, 0.1))),
        scheduler_reserve_full_isl=draw(st.booleans()),
        rules=rules,
    )
    modes = naive.Modes(
        num_batches_in_flight=1 + is_async,
        speculation=derived(speculation, has_connector=False) if speculation else None,
        loras=draw(st.none() | LORAS),
        swap=draw(st.builds(naive.Swap, num_blocks=st.integers(1, 40), block_copy_s=st.integers(0, 9))),
    )
    script = scripts(is_async=is_async, kind="offload", fewest=0)
    given_scripts = draw(st.lists(script, min_size=len(trace), max_size=len(trace)))
    return Case(trace, config, draw(step_times), 2_000, recorded(speculation), modes, given_scripts)


def assert_engines_agree(case: Case) -> None:
    """The one that walks and the naive one: every step, and what became of each request."""
    expected, got = run_reference(case), run_walking(case)
    for one, other in zip(got.steps, expected.steps, strict=False):
        assert one == other
    assert (len(got.steps), got.requests, got.crashed) == (len(expected.steps), expected.requests, expected.crashed)


@examples(100)
@given(case=cases())
def test_engines_agree(case: Case) -> None:
    """Step by step, on who is swapped and on what became of each request."""
    assert_engines_agree(case)


def test_an_aborted_request_leaves_swap_space() -> None:
    """Of two that fill eight blocks the second is swapped out in the fifth pass; gone, it leaves room for the next."""
    config = scheduler_config(
        async_scheduling=False, block_size=1, num_gpu_blocks=9, max_model_len=9, enable_prefix_caching=False
    )
    scheduler = Scheduler(config, Modes(swap_space=SwapSpace(4, 1.0)), None, 0, counts=False)
    first, second, third = (Request(row, str(row), 0.0, 1, 8) for row in range(3))

    def passes(count: int) -> None:
        for _ in range(count):
            scheduler.take_in(scheduler.schedule(), 0.0)

    for request in (first, second):
        scheduler.add_request(request)
    passes(5)
    assert list(scheduler.state.holding) == [second]
    assert (second.status, second.num_sampled_tokens) == (RequestStatus.SWAPPED, 4)
    scheduler.abort(second)
    scheduler.add_request(third)
    passes(1)
    assert not scheduler.state.holding
    assert [progress.request for progress in scheduler.state.running] == [first, third]
    passes(20)
    assert (first.num_preemptions, scheduler.state.num_free_blocks) == (0, 8)
