"""A what-if: cached blocks are evicted by how often they were used, or by how long their prefix is."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim
from sim.deployment import deploy
from sim.errors import ConfigError
from sim.specs.serve_command import serve_command
from sim.steptime.linear import LinearStepTime
from sim.workload.trace import Segment, Trace
from tests.configs import changed
from tests.conformance.case import Case
from tests.engine.test_swapping import assert_engines_agree
from tests.engine.test_swapping import cases as hard_cases
from tests.properties import engine_examples as examples

A_STEP = LinearStepTime(base_s=0.01, per_token_s=0.0, per_context_token_s=0.0)
COMMON, RARE = (0, 32), (1, 64)


def run(prompts: list[Segment], *, blocks: int, **engine: Any) -> sim.Result:
    """One after the other, each with a token of its own behind its prompt, and an answer of one."""
    count = len(prompts)
    trace = Trace(
        tuple(map(str, range(count))),
        np.arange(count, dtype=np.float64),
        np.array([tokens + 1 for _, tokens in prompts]),
        np.ones(count, dtype=np.int64),
        segments=[(prompt, (100 + number, 1)) for number, prompt in enumerate(prompts)],
    )
    arguments = {"max_model_len": 100, "num_gpu_blocks_override": 1 + blocks, **engine}
    return sim.simulate(
        "Llama-3.1-8B",
        "h100-sxm",
        trace,
        engine=sim.EngineConfig(**arguments),
        step_time_model=A_STEP,
        intervals=False,
    )


@pytest.mark.parametrize(("policy", "cached"), [("lru", 0), ("lfu", 32), ("size_aware", 16)])
def test_who_makes_room(policy: str, cached: int) -> None:
    """Two blocks were used by two requests, four by one later on; of eight, two without content and three others are taken.

    The common ones are the oldest; used twice, they are the last by use. By length the third and fourth of the rare prompt go, and
    of second blocks the older one, which is common.
    """
    prompts = [COMMON, COMMON, RARE, (2, 64), COMMON]
    found = run(prompts, blocks=8, prefix_cache_eviction=policy)
    assert found.requests["num_cached_tokens"].tolist() == [0, 32, 0, 0, cached]


def test_uses_count_while_a_block_is_cached() -> None:
    """Evicted by a prompt that takes all blocks, it begins anew: of three that were used once the oldest goes, used three times before or not."""
    prompts = [COMMON, COMMON, COMMON, (2, 90), COMMON, (3, 32), (4, 48), COMMON]
    cached = run(prompts, blocks=6, prefix_cache_eviction="lfu").requests["num_cached_tokens"]
    assert cached.tolist() == [0, 32, 32, 0, 0, 0, 0, 0]


def test_it_is_named_as_a_what_if() -> None:
    """Where nothing is cached it changes nothing, which is said."""
    engine = sim.EngineConfig(prefix_cache_eviction="lfu")
    assert serve_command("m", engine) == "vllm serve m  # without prefix_cache_eviction lfu, which no vLLM has"
    assert deploy("Llama-3.1-8B", "h100-sxm", engine).modes.evicts_by == "lfu"
    off = deploy("Llama-3.1-8B", "h100-sxm", replace(engine, enable_prefix_caching=False))
    assert off.modes.evicts_by == "lru"
    assert any(note.startswith("prefix_cache_eviction changes nothing here") for note in off.notes)


@pytest.mark.parametrize(
    ("model", "arguments", "reason"),
    [
        (
            "gpt-oss-20b",
            {},
            "prefix_cache_eviction size_aware is simulated for models whose layers all have full attention",
        ),
        ("Llama-3.1-8B", {"kv_offloading_size": 4.0}, "prefix_cache_eviction size_aware is not simulated with kv_off"),
    ],
)
def test_what_goes_not_with_it(model: str, arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        deploy(model, "h100-sxm", sim.EngineConfig(prefix_cache_eviction="size_aware", **arguments)).require_runnable()


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Requests that hardly fit, many of which share prefixes; some are swapped out."""
    case = draw(hard_cases())
    policy = draw(st.sampled_from(("lfu", "size_aware")))
    rules = replace(case.config.engine.rules, unhashed_blocks_first=draw(st.booleans()))
    config = changed(case.config, enable_prefix_caching=True, prefix_cache_eviction=policy, rules=rules)
    return replace(case, config=config, modes=replace(case.modes, swap=draw(st.sampled_from((None, case.modes.swap)))))


@examples(100)
@given(case=cases())
def test_engines_agree(case: Case) -> None:
    """Step by step, on hits and evictions and on what became of each request."""
    assert_engines_agree(case)
