"""Pools of unlike replicas: who can serve a request, and what each pool makes of it."""

from dataclasses import replace

import numpy as np
import pytest

from sim.cluster.fleet_plan import FleetPlan, Pool
from sim.cluster.routers.table import ROUTERS
from sim.cluster.simulation import simulate
from sim.engine.config import SchedulerConfig
from sim.errors import ConfigError
from sim.steptime.linear import LinearStepTime
from sim.workload.trace import Trace
from tests.configs import changed, scheduler_config

FAST, SLOW = LinearStepTime(0.01, 0.0, 0.0), LinearStepTime(0.02, 0.0, 0.0)
CONFIG = scheduler_config(
    max_num_seqs=8,
    max_num_batched_tokens=256,
    max_model_len=400,
    num_gpu_blocks=300,
    block_size=16,
    enable_prefix_caching=True,
)
LARGE_BLOCKS = replace(CONFIG, block_size=32, num_gpu_blocks=150)
LONG = replace(CONFIG, max_model_len=1000)
UNCACHED = changed(CONFIG, enable_prefix_caching=False)


def asks(*lengths: tuple[int, int]) -> Trace:
    """Prompt and output tokens of requests of one session, 10 s apart, each of which begins with all that was said before."""
    prompts, outputs = np.array(lengths).T
    count = len(lengths)
    return Trace(
        tuple(f"r{row}" for row in range(count)),
        np.arange(0.0, 10.0 * count, 10.0),
        prompts,
        outputs,
        session_id=("a",) * count,
    )


def pools(*configs: SchedulerConfig, router: str = "round_robin") -> FleetPlan:
    """Of a replica each."""
    return FleetPlan(tuple(Pool(config, FAST) for config in configs), router)


@pytest.mark.parametrize("router", [name for name in ROUTERS if name != "prompt_length"])
def test_pools_that_are_alike_are_one(router: str) -> None:
    trace = asks(*[(40 * (row + 1), 20) for row in range(8)])
    apart = simulate(trace, FleetPlan((Pool(CONFIG, FAST, 2), Pool(CONFIG, FAST, 1)), router))
    together = simulate(trace, FleetPlan.alike(CONFIG, FAST, 3, router))
    np.testing.assert_array_equal(apart.replica, together.replica)
    np.testing.assert_array_equal(apart.merged.requests.finish_s, together.merged.requests.finish_s)
    assert apart.pool_of == (0, 0, 1)


def test_each_replica_is_as_its_pool_says() -> None:
    """The second takes twice as long for 11 steps, and finds its prefix in blocks of 32 tokens, where the first finds 16."""
    trace = asks((50, 11), (50, 11), (50, 11), (50, 11))
    plan = FleetPlan((Pool(CONFIG, FAST), Pool(LARGE_BLOCKS, SLOW)), "round_robin")
    found = simulate(trace, plan).merged.requests
    assert (found.finish_s - found.arrival_s).tolist() == pytest.approx([0.11, 0.22, 0.11, 0.22])
    assert found.num_cached_tokens.tolist() == [0, 0, 48, 32]


def test_who_caches_no_prefixes_finds_none() -> None:
    found = simulate(asks(*[(50, 11)] * 4), pools(CONFIG, UNCACHED)).merged.requests
    assert found.num_cached_tokens.tolist() == [0, 0, 48, 0]


@pytest.mark.parametrize("router", [name for name in ROUTERS if name != "vllm_dp"])
def test_what_is_too_long_for_some_goes_to_the_others(router: str) -> None:
    """The third would end early at one of them, the fourth would not begin; the last fits nowhere."""
    trace = asks((50, 11), (50, 11), (390, 50), (500, 5), (1000, 5))
    found = simulate(trace, pools(CONFIG, LONG, CONFIG, router=router))
    assert found.replica[2:].tolist() == [1, 1, -1]
    assert found.merged.requests.generated_tokens.tolist() == [11, 11, 50, 5, 0]
    assert found.merged.requests.output_tokens.tolist() == [11, 11, 50, 5, 0]
    assert list(found.merged.requests.rejected) == [4]
    assert found.merged.requests.rejected[4] == (
        "a prompt of 1000 tokens leaves no room for output within max_model_len 400; "
        "a prompt of 1000 tokens leaves no room for output within max_model_len 1000"
    )


def test_whose_turn_it_is_does_not_depend_on_who_could_not_serve_others() -> None:
    """Requests that only two of four can serve, between others that all can: nobody is passed over."""
    trace = asks(*[(500, 5), (50, 5)] * 4)
    assert simulate(trace, pools(CONFIG, CONFIG, LONG, LONG)).replica.tolist() == [2, 0, 3, 1, 2, 0, 3, 1]


@pytest.mark.parametrize(
    ("router", "other", "sentence"),
    [
        ("vllm_dp", LONG, "vllm_dp balances the data-parallel engines of one vLLM, which are alike"),
        ("dynamo", LARGE_BLOCKS, "router dynamo .* in blocks of one size; got 16 tokens and 32 tokens"),
        ("llm_d_precise", UNCACHED, "router llm_d_precise .*; got 16 tokens and no prefix caching"),
    ],
)
def test_a_router_that_cannot_work_with_such_pools_says_so(router: str, other: SchedulerConfig, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        simulate(asks((50, 11)), pools(CONFIG, other, router=router))


def test_llm_d_counts_in_blocks_of_the_first_pool() -> None:
    """Both find three blocks of 16 where they were sent them; each holds as many as its own cache."""
    found = simulate(asks((50, 11), (60, 11), (70, 11)), pools(CONFIG, LARGE_BLOCKS, router="llm_d:queue=0,kv=0"))
    assert len(set(found.replica.tolist())) == 1


def test_steps_of_all_pools_know_their_free_blocks() -> None:
    """As those of each by itself."""
    found = simulate(asks(*[(50, 70)] * 4), pools(CONFIG, LARGE_BLOCKS))
    free = np.concatenate([part.steps.num_free_blocks for part in found.replicas])
    np.testing.assert_array_equal(found.merged.steps.num_free_blocks, free)
    assert free.min() == 150 - 1 - 4  # 120 tokens in blocks of 32
