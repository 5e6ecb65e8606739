"""Layers that keep states, by vLLM's own rules: where chunks end, which blocks they take, and what is found of them."""

from dataclasses import replace
from typing import Any

import pytest

from sim.engine.config import KVGroup
from sim.engine.kv_cache_manager import can_ever_fit
from sim.errors import ConfigError
from sim.specs.engine import EngineConfig
from sim.specs.hardware import load_gpu
from sim.specs.models import load_model
from sim.specs.releases import release_for
from sim.specs.vllm import resolve_engine
from tests.conformance.case import load_case
from tests.conformance.test_recorded import GOLDEN
from tests.engine.test_rotation import assert_counts_as_it_walks
from tests.engines import Engine
from tests.makers import Ask, Run, make_config, run

STATES = KVGroup(window=2, keeps_states=True)
CHECKPOINTED = replace(STATES, writes_checkpoints=True)
RECORDED = sorted(GOLDEN.glob("mode_states_*.json.gz"))


def steps(engine: Engine, asks: list[Ask], states: KVGroup = STATES, version: str = "0.33.0", **arguments: Any) -> Run:
    """Blocks of 4 tokens, one group with full attention and one that keeps states, whose states stay at prompts' ends and where these part."""
    given: dict[str, Any] = {"num_gpu_blocks": 100, "block_size": 4, "prefix_cache_retention_interval": 0}
    rules = release_for(version).rules
    return run(engine, asks, kv_groups=(KVGroup(), states), rules=rules, **{**given, **arguments})


def test_a_prompt_is_cut_at_its_last_whole_block(engine: Engine) -> None:
    """Of 10 tokens 8, for which 2 blocks are taken and 1 for the state behind them, then the rest; B goes on behind the 8."""
    asks = [Ask("A", ((0, 10),), 1), Ask("B", ((0, 10),), 1, at=5)]
    done = steps(engine, asks)
    assert done.tokens == [{"A": 8}, {"A": 2}, {"B": 2}]
    assert [row[3] for step in done.steps for row in step["sched"]] == [3, 2, 2]


def test_a_chunk_has_the_last_of_its_blocks_alone(engine: Engine) -> None:
    """40 tokens take 10 blocks and 1; without prefix caching the one that is taken stays to the end, however long that is."""
    asks = [Ask("A", 41, 3)]
    assert steps(engine, asks).steps[0]["sched"] == [["A", 40, 0, 11]]
    uncached = run(engine, asks, num_gpu_blocks=100, block_size=4, enable_prefix_caching=False, num_state_blocks=1)
    assert [step["sched"] for step in uncached.steps[:2]] == [[["A", 41, 0, 12]], [["A", 1, 41, 0]]]


def test_a_pass_that_writes_two_states_needs_no_cut(engine: Engine) -> None:
    """All 10 tokens at once: 3 blocks, and 2 for the states behind 8 tokens and behind 10, which B finds."""
    asks = [Ask("A", ((0, 10),), 1), Ask("B", ((0, 10),), 1, at=5)]
    done = steps(engine, asks, CHECKPOINTED)
    assert done.tokens == [{"A": 10}, {"B": 2}]
    assert done.steps[0]["sched"] == [["A", 10, 0, 5]]


def test_what_a_pass_is_to_compute_is_found_with_the_next(engine: Engine) -> None:
    """B begins like A, which is to compute 8 tokens of it in the same pass: it waits for that, and holds up C."""
    asks = [Ask("A", ((0, 10),), 4), Ask("B", ((0, 8), (1, 3)), 1), Ask("C", 3, 1)]
    assert steps(engine, asks).tokens[:2] == [{"A": 8}, {"A": 2, "B": 3, "C": 3}]


def test_of_0_32_only_once_it_is_held_no_more(engine: Engine) -> None:
    """There A's state behind 8 tokens counts as one of the pass as long as A holds it: until its tokens behind that are computed."""
    asks = [Ask("A", ((0, 10),), 4), Ask("B", ((0, 8), (1, 3)), 1)]
    assert steps(engine, asks, version="0.32.0").tokens[:3] == [{"A": 8}, {"A": 2}, {"A": 1, "B": 3}]


def test_the_third_that_begins_alike_finds_it(engine: Engine) -> None:
    """A and B have no state where C parts from them: full attention knows the place, so that B's chunk ends there and its state stays."""
    asks = [Ask(name, ((0, 16), (row, 17)), 1, at=9 * row) for row, name in enumerate("ABC", 1)]
    assert steps(engine, asks).tokens == [{"A": 32}, {"A": 1}, {"B": 16}, {"B": 16}, {"B": 1}, {"C": 16}, {"C": 1}]


def test_a_prompt_of_whole_blocks(engine: Engine) -> None:
    """Its last token is computed again behind the same prompt: since 0.32 the block that it is in is a chunk of its own."""
    asks = [Ask("A", ((0, 12),), 1), Ask("B", ((0, 12),), 1, at=5)]
    assert steps(engine, asks).tokens == [{"A": 8}, {"A": 4}, {"B": 4}]
    assert steps(engine, asks, version="0.31.0").tokens == [{"A": 12}, {"B": 8}, {"B": 4}]


def test_a_chunk_that_ends_within_a_block_for_want_of_tokens(engine: Engine) -> None:
    """B gets 4 of the 7 that A's decodes leave of the budget, and a block that is wider than any chunk is filled bit by bit."""
    asks = [Ask("A", 3, 9), Ask("B", 13, 1, at=2)]
    assert steps(engine, asks, max_num_batched_tokens=8).tokens[2:5] == [
        {"A": 1, "B": 4},
        {"A": 1, "B": 4},
        {"A": 1, "B": 4},
    ]
    wide = steps(engine, [Ask("A", 20, 1)], block_size=16, max_num_batched_tokens=6)
    assert wide.tokens == [{"A": 6}, {"A": 6}, {"A": 4}, {"A": 4}]


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_decodes_between_the_ends_of_blocks_are_counted(path: Any) -> None:
    """Recorded runs, without a log."""
    case = load_case(path)
    if case.modes.speculation is None:
        assert_counts_as_it_walks(case)


def test_a_lone_request_needs_room_for_its_states() -> None:
    """40 tokens: 10 blocks, and one for each batch in flight, one that is given back meanwhile, and one for a second state of a pass."""
    for states, is_async, least in ((STATES, False, 12), (STATES, True, 13), (CHECKPOINTED, False, 13)):
        config = make_config(block_size=4, kv_groups=(KVGroup(), states), async_scheduling=is_async)
        fits = [can_ever_fit(40, replace(config, num_gpu_blocks=1 + blocks)) for blocks in (least - 1, least)]
        assert fits == [False, True]


H100, A100 = load_gpu("h100-sxm"), load_gpu("a100-sxm-80gb")


@pytest.mark.parametrize(
    ("name", "gpu", "version", "writes", "tokens"),
    [
        ("Qwen3.5-4B", H100, "0.33.0", True, 64),
        ("Qwen3.5-4B", A100, "0.33.0", False, 16),
        ("Qwen3.5-4B", H100, "0.32.0", False, 16),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", A100, "0.32.0", True, 16),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", A100, "0.31.0", False, 16),
        ("Llama-3.1-8B", H100, "0.33.0", False, 16),
    ],
)
def test_which_kernels_write_two_states(name: str, gpu: Any, version: str, writes: bool, tokens: int) -> None:
    """Mamba's all, since 0.32; of gated delta nets FlashInfer's, since 0.33, whose blocks are multiples of 64 tokens."""
    engine = resolve_engine(EngineConfig(), load_model(name), gpu, vllm_version=version)
    assert (engine.writes_state_checkpoints, engine.state_block_alignment_tokens) == (writes, tokens)


def test_prompts_in_one_piece_are_refused() -> None:
    """As vLLM asserts it; not where prefixes are not cached."""
    whole = EngineConfig(enable_chunked_prefill=False)
    with pytest.raises(ConfigError, match=r"layers keep states.*leave one of them out"):
        resolve_engine(whole, load_model("Qwen3.5-4B"), H100)
    assert not resolve_engine(whole, load_model("Qwen3.5-4B"), H100, vllm_version="0.27.1").enable_chunked_prefill
