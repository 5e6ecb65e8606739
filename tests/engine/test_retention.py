"""Which blocks of windows stay cached, by vLLM's own rules: at a prompt's end, where prompts part, every so many tokens."""

import pytest

from sim.engine.config import KVGroup
from sim.engine.request import Request
from sim.engine.retention import Ranges, Retention
from sim.errors import ConfigError
from sim.specs.engine import EngineConfig
from sim.specs.hardware import load_gpu
from sim.specs.models import load_model
from sim.specs.vllm import resolve_engine
from tests.engines import ENGINES, Engine
from tests.makers import Ask, make_config, run


def ranges(interval: int, *, prompt: int, junction: int = 0, num_dropped: int = 0, last: int = 100) -> Ranges:
    """Of blocks of 4 tokens; a window of 10 needs 3 of them."""
    request = Request(0, "A", 0.0, prompt, 8)
    request.junction = junction
    config = make_config(block_size=4, kv_groups=(KVGroup(window=10),))
    return Retention(config, interval, drops=num_dropped > 0).ranges(0, request, 0, last)


def test_the_end_of_a_prompt_stays() -> None:
    """Of 33 tokens, and of 36, whose last one is computed again, blocks 5 to 7; of a short prompt all."""
    assert ranges(0, prompt=33) == ranges(0, prompt=36) == [(5, 8)]
    assert ranges(0, prompt=37) == [(6, 9)]
    assert ranges(0, prompt=9) == [(0, 2)]
    assert ranges(0, prompt=33, last=6) == [(5, 6)]


def test_where_prompts_part_a_window_stays_as_well() -> None:
    """Behind 16 tokens blocks 1 to 3; two that touch are one."""
    assert ranges(0, prompt=33, junction=16) == [(1, 4), (5, 8)]
    assert ranges(0, prompt=33, junction=24) == [(3, 8)]


def test_every_so_many_tokens() -> None:
    """Every 24 tokens, 6 blocks, the last 3; every 12, as many as a window needs, all."""
    assert ranges(24, prompt=33, last=14) == [(3, 8), (9, 12)]
    assert ranges(12, prompt=33, last=14) == [(0, 14)]


def test_with_a_drafter_one_block_more_is_needed() -> None:
    """It looks at a block behind the hit: of 36 tokens the hit is one of 28, behind the same prompt, or of 32, behind a longer one."""
    assert ranges(0, prompt=37, num_dropped=1) == [(5, 9)]
    assert ranges(0, prompt=36, num_dropped=1) == [(4, 9)]


def test_windows_without_the_drafter_lack_that_block() -> None:
    """Where vLLM knows that its layers are among full attention, hits are as short, and windows keep what these need."""
    config = make_config(block_size=4, kv_groups=(KVGroup(has_drafter=True), KVGroup(window=10)))
    retention = Retention(config, 0, drops=True)
    request = Request(0, "A", 0.0, 36, 8)
    assert retention.ranges(1, request, 0, 100) == [(4, 8)]
    request.junction = 16
    assert retention.ranges(1, request, 0, 100) == [(1, 8)]


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_the_third_that_begins_alike_finds_it(engine: Engine) -> None:
    """A leaves no window where B parts from it; B, of whom full attention knows 16 tokens, does, and C finds them. D repeats C."""
    asks = [Ask(name, ((0, 16), (row, 17)), 1, at=9 * row) for row, name in enumerate("ABC", 1)]
    asks.append(Ask("D", ((0, 16), (3, 17)), 1, at=40))
    groups = (KVGroup(), KVGroup(window=10))
    kept = run(engine, asks, num_gpu_blocks=200, block_size=4, kv_groups=groups, prefix_cache_retention_interval=0)
    assert kept.tokens == [{"A": 33}, {"B": 33}, {"C": 17}, {"D": 1}]
    everywhere = run(engine, asks, num_gpu_blocks=200, block_size=4, kv_groups=groups)
    assert everywhere.tokens == [{"A": 33}, {"B": 17}, {"C": 17}, {"D": 1}]


def test_chunked_attention_and_full_attention_keep_all() -> None:
    """Of a model without sliding windows nothing is left out."""
    assert not make_config(prefix_cache_retention_interval=0).caches_with_gaps
    chunked = (KVGroup(window=10, is_kept_sparsely=False), KVGroup())
    assert not make_config(prefix_cache_retention_interval=0, kv_groups=chunked).caches_with_gaps


@pytest.mark.parametrize(("version", "interval"), [("0.29.0", "None"), ("0.30.0", 0), ("0.33.0", 0)])
def test_versions_differ(version: str, interval: int | str) -> None:
    """vLLM keeps the ends alone by default since 0.30 (vllm#52216)."""
    resolved = resolve_engine(EngineConfig(), load_model("gpt-oss-20b"), load_gpu("h100-sxm"), vllm_version=version)
    assert resolved.prefix_cache_retention_interval == interval


@pytest.mark.parametrize("interval", [-1, 1.5, "all", True])
def test_intervals_are_tokens(interval: object) -> None:
    """Or None, as vLLM's command line spells it."""
    with pytest.raises(ConfigError, match=r"^prefix_cache_retention_interval must be an integer of at least 0"):
        EngineConfig(prefix_cache_retention_interval=interval)  # type: ignore[arg-type]
