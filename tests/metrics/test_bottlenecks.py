"""What limits a run, told from records written by hand."""

import pytest

from sim.engine.config import SchedulerConfig
from sim.metrics.bottlenecks import Limits, limited_steps, limits
from sim.specs.engine import EngineConfig
from sim.specs.hardware import load_gpu
from sim.specs.models import load_model
from sim.specs.vllm import resolve_engine
from sim.steptime.roofline import RooflineStepTime
from tests.configs import changed, scheduler_config
from tests.metrics.makers import Life, Step, make_records

H100 = load_gpu("h100-sxm")
CONFIG = scheduler_config(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=1000, num_gpu_blocks=101)
FULL_BATCH = Step(0.0, 1.0, num_decodes=2, num_chunk_tokens=62, num_running=3, num_waiting=1)
ALL_SEATS = Step(1.0, 3.0, num_decodes=4, num_waiting=5)
NO_BLOCKS = Step(3.0, 6.0, num_decodes=2, num_free_blocks=0, num_waiting=1)
NOBODY_WAITS = Step(6.0, 10.0, num_decodes=4)


def queued(*steps: Step, config: SchedulerConfig = CONFIG) -> dict[str, float]:
    found = limits(make_records(Life(), steps=steps), config, H100, None, span_s=10.0)
    return {name: share for name, share in found.queued.items() if share}


def test_time_in_which_requests_wait_is_shared_out_by_what_the_step_had_run_out_of() -> None:
    """A second at the token budget, two without a seat, three without blocks, four in which nobody waits."""
    assert queued(FULL_BATCH, ALL_SEATS, NO_BLOCKS, NOBODY_WAITS) == {
        "token_budget": pytest.approx(0.1),
        "max_num_seqs": pytest.approx(0.2),
        "kv_space": pytest.approx(0.3),
    }


def test_a_pass_that_preempts_lacks_blocks_whatever_else_is_full() -> None:
    """It admits nobody, full batch or not."""
    assert queued(FULL_BATCH._replace(num_preempted=1)) == {"kv_space": pytest.approx(0.1)}
    assert queued(ALL_SEATS._replace(num_preempted=1)) == {"kv_space": pytest.approx(0.2)}


def test_seats_are_those_that_may_run_at_once() -> None:
    """Where fewer may be active than max_num_seqs says, that is the limit."""
    active = changed(CONFIG, max_num_active_seqs=2)
    assert queued(NO_BLOCKS, config=active) == {"max_num_seqs": pytest.approx(0.3)}


@pytest.mark.parametrize(("prompt_tokens", "cause"), [(63, "token_budget"), (62, "kv_space")])
def test_a_prompt_that_may_not_be_split_waits_for_tokens(prompt_tokens: int, cause: str) -> None:
    """Two decodes leave 62 tokens of 64: one more does not fit, just as many would."""
    unsplit = changed(CONFIG, enable_chunked_prefill=False)
    lives = Life(first_scheduled_s=0.0), Life(rejected="long", prompt_tokens=999), Life(prompt_tokens=prompt_tokens)
    records = make_records(*lives, steps=(NO_BLOCKS,))
    found = limits(records, unsplit, H100, None, span_s=10.0).queued
    assert {name for name, share in found.items() if share} == {cause}


def test_steps_that_met_a_limit_are_counted_whether_or_not_anybody_waits() -> None:
    """One of four filled the batch, two had all seats taken, one left requests waiting for blocks."""
    records = make_records(Life(), steps=(FULL_BATCH, ALL_SEATS, NO_BLOCKS, NOBODY_WAITS))
    assert limited_steps(records, CONFIG) == {"token_budget": 0.25, "max_num_seqs": 0.5, "kv_space": 0.25}


def busy(*steps: Step, model: str = "Llama-3.1-8B", tensor_parallel_size: int = 1) -> Limits:
    spec = load_model(model)
    engine = resolve_engine(EngineConfig(tensor_parallel_size=tensor_parallel_size), spec, H100)
    records = make_records(Life(), steps=steps)
    config = changed(CONFIG, num_gpu_blocks=10_000, max_num_batched_tokens=8192)
    return limits(records, config, H100, lambda gpu: RooflineStepTime(spec, gpu, engine), span_s=1.0)


def test_a_few_decodes_are_bound_by_bandwidth_and_a_long_prompt_by_compute() -> None:
    """As the roofline has it, and the shares are of the whole busy time."""
    decoding = busy(Step(0.0, 1.0, num_decodes=4, num_free_blocks=9_000)).busy
    prompts = busy(Step(0.0, 1.0, num_decodes=0, num_chunk_tokens=8192, num_free_blocks=9_000)).busy
    assert decoding["hbm_bandwidth"] > 7 * decoding["compute"]
    assert prompts["compute"] > 5 * prompts["hbm_bandwidth"]
    assert decoding["links"] == prompts["links"] == 0.0
    assert sum(decoding.values()) == pytest.approx(1.0)


def test_a_tiny_model_waits_for_its_host_and_a_split_one_for_its_links() -> None:
    """Launches outweigh the work of half a billion weights; messages of many tokens cross the links."""
    assert busy(Step(0.0, 1.0, num_free_blocks=9_999), model="Qwen3-0.6B").busy["host"] > 0.4
    prompts = Step(0.0, 1.0, num_decodes=0, num_chunk_tokens=8192, num_free_blocks=9_000)
    assert busy(prompts, tensor_parallel_size=4).busy["links"] > 0.1


def test_steps_count_by_how_long_they_ran() -> None:
    """A minute of prompts beside a second of decodes is bound by compute."""
    prompts = Step(1.0, 61.0, num_decodes=0, num_chunk_tokens=8192, num_free_blocks=9_000)
    assert busy(Step(0.0, 1.0, num_free_blocks=9_999), prompts).busy["compute"] > 0.8


def test_steps_count_by_how_long_they_ran_and_not_by_how_long_each_takes() -> None:
    """A second of long steps and a second of short ones are two halves of the busy time."""
    decodes, prompts = (
        {"num_free_blocks": 9_999},
        {"num_decodes": 0, "num_chunk_tokens": 8192, "num_free_blocks": 9_000},
    )
    both = busy(Step(0.0, 1.0, **decodes), Step(1.0, 2.0, **prompts)).busy
    halves = [busy(Step(0.0, 1.0, **decodes)).busy, busy(Step(0.0, 1.0, **prompts)).busy]
    for resource in ("compute", "hbm_bandwidth"):
        assert both[resource] == pytest.approx(sum(half[resource] for half in halves) / 2)


def test_the_largest_shares_are_said_first_and_small_ones_not_at_all() -> None:
    """Two resources at most, then whatever requests wait for."""
    found = Limits({"compute": 0.5, "hbm_bandwidth": 0.3, "host": 0.2}, {"kv_space": 0.25, "token_budget": 0.019})
    assert str(found) == "compute 50%, HBM bandwidth 30%, waits for KV space 25% of the time"
    assert str(Limits({}, {})) == "nothing: requests come too slowly"
