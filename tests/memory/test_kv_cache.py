"""KV groups, blocks and refusals, row by row as vLLM's own code computed them."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import ConfigError
from sim.memory.kv_cache import KVCacheLayout, KVGroup, RequestLimits, kv_cache_layout
from sim.specs.engine import EngineConfig
from sim.specs.model import Attention, Layer, ModelSpec
from sim.units import GIB, MIB
from tests.memory.shapes import GOLDEN, Shape, make_engine, make_model

LLAMA_8B = Shape(4096, 14336, 32, 32, 8, 128, 128256, 131072)
GPT_OSS = Shape(2880, 2880, 24, 64, 8, 64, 201088, 131072, num_sliding=12, window=128)
SHAPES = {
    "llama-8b": LLAMA_8B,
    "llama-70b": replace(LLAMA_8B, hidden=8192, layers=80, heads=64),
    "qwen3-8b": replace(LLAMA_8B, layers=36, max_model_len=40960),
    "gemma3-27b": Shape(5376, 21504, 62, 32, 16, 128, 262208, 131072, num_sliding=52, window=1024),
    "deepseek-v3": Shape(7168, 18432, 61, 128, 128, 192, 129280, 163840, kv_lora_rank=512, qk_rope_head_dim=64),
    "gpt-oss-20b": GPT_OSS,
    "gpt-oss-120b": replace(GPT_OSS, layers=36, num_sliding=18),
    "mistral-sw": replace(LLAMA_8B, max_model_len=32768, num_sliding=32, window=4096),
    "tiny-llama": Shape(),
}
KINDS = {"FullAttentionSpec": "full", "MLAAttentionSpec": "mla", "SlidingWindowSpec": "sliding"}
ROWS: list[dict[str, Any]] = json.loads((GOLDEN / "kv_cache_sizes.json").read_text())["rows"]


def row_name(row: dict[str, Any]) -> str:
    return f"{row['model']}-tp{row['tp']}-{row['available_bytes']}-bs{row['block_size']}-{row.get('args', '')}"


def recorded_layout(row: dict[str, Any]) -> KVCacheLayout:
    """The layout of a row's model and arguments."""
    model = make_model(SHAPES[row["model"]])
    args = {name: value for name, value in row.get("args", {}).items() if name != "disable_hybrid_kv_cache_manager"}
    config = EngineConfig(
        tensor_parallel_size=row["tp"], block_size=row["block_size"], max_model_len=row["max_model_len"], **args
    )
    engine = make_engine(model, config, vllm_version="0.32.0")
    return kv_cache_layout(model, engine, hybrid="disable_hybrid_kv_cache_manager" not in row.get("args", {}))


@pytest.mark.parametrize("row", [row for row in ROWS if "refused" not in row], ids=row_name)
def test_sizes_equal_those_of_vllm(row: dict[str, Any]) -> None:
    """Groups, block count, capacity and concurrency of a configuration that starts are vLLM's to the last digit."""
    layout = recorded_layout(row)
    num_blocks = row.get("args", {}).get("num_gpu_blocks_override") or layout.num_blocks(row["available_bytes"])
    longest = layout.longest_request(num_blocks, row["max_model_len"])
    max_model_len = row["max_model_len"] if "auto" not in row else longest
    concurrency = layout.max_concurrency(num_blocks, max_model_len)
    windows_kept = "disable_hybrid_kv_cache_manager" not in row.get("args", {})
    groups = [[KINDS[kind], window if windows_kept else None, *sizes] for kind, window, *sizes in row["groups"]]
    assert [[g.kind, g.window, g.num_layers, g.block_size, g.page_bytes] for g in layout.groups] == groups
    assert longest == row.get("auto", row["max_model_len"])
    assert layout.limits.max_in_flight_tokens == row["in_flight"]
    assert (num_blocks, layout.bytes_per_block) == (row["num_blocks"], row["bytes_per_block"])
    assert num_blocks * layout.bytes_per_block == row["kv_tensor_bytes"]
    assert (int(concurrency * max_model_len), concurrency) == (row["capacity_tokens"], row["max_concurrency"])


@pytest.mark.parametrize("row", [row for row in ROWS if isinstance(row.get("refused"), dict)], ids=row_name)
def test_refusals_equal_those_of_vllm(row: dict[str, Any]) -> None:
    """Where vLLM refuses to start, the need, what is there and the longest length that fits are those of its message."""
    layout, refused = recorded_layout(row), row["refused"]
    num_blocks = row.get("args", {}).get("num_gpu_blocks_override") or layout.num_blocks(row["available_bytes"])
    given_bytes = num_blocks * layout.bytes_per_block if "args" in row else row["available_bytes"]
    needed = layout.blocks_per_request(row["max_model_len"]) * layout.bytes_per_block
    assert layout.longest_request(num_blocks, row["max_model_len"]) == refused["longest"] < row["max_model_len"]
    assert round(needed / GIB, 2) == refused["needed_gib"]
    assert round((given_bytes - layout.bytes_per_block) / GIB, 2) == refused["available_gib"]


def test_a_context_beyond_the_models_is_refused() -> None:
    """The recorded row that asks for more positions than the config has is refused before any memory is planned."""
    rows = [row for row in ROWS if row.get("refused") == "max_model_len"]
    assert len(rows) == 1
    with pytest.raises(ConfigError, match="max_model_len"):
        recorded_layout(rows[0])


def test_all_recorded_rows_are_here() -> None:
    """All 113 recorded configurations are checked: 103 that start and 10 that are refused."""
    assert (len(ROWS), sum("refused" in row for row in ROWS)) == (113, 10)


def test_one_gibibyte_is_a_block_short_for_8192_tokens() -> None:
    """The null block counts: llama-8b with exactly 1 GiB has 512 blocks, a request of 8,192 tokens would need 513."""
    layout = recorded_layout(ROWS[0])
    assert layout.num_blocks(GIB) == 512
    assert layout.longest_request(512, 8192) == 8176
    assert layout.longest_request(513, 8192) == 8192


def test_llama_8b_has_29751_blocks_in_58_11_gib() -> None:
    """Statement 40: 2 MiB a block in bf16 on one GPU, 476,016 tokens, 58.11 requests of 8,192; TP 2 halves the page."""
    layout = recorded_layout(ROWS[0])
    available_bytes = 29_751 * 2 * MIB + MIB
    assert (layout.bytes_per_block, f"{available_bytes / GIB:.2f}") == (2 * MIB, "58.11")
    assert layout.num_blocks(available_bytes) == 29_751
    concurrency = layout.max_concurrency(29_751, 8192)
    assert (f"{concurrency:.2f}", int(concurrency * 8192)) == ("58.11", 476_016)
    assert kv_page(LLAMA_8B, 2) == kv_page(LLAMA_8B, 1) // 2


def test_a_rank_keeps_at_least_one_kv_head() -> None:
    """Statement 40: with 2 KV heads the page stops shrinking at TP 2."""
    shape = replace(LLAMA_8B, kv_heads=2)
    assert kv_page(shape, 4) == kv_page(shape, 2) == kv_page(shape, 1) // 2


def kv_page(shape: Shape, tensor_parallel_size: int) -> int:
    model = make_model(shape)
    engine = make_engine(model, EngineConfig(tensor_parallel_size=tensor_parallel_size))
    return kv_cache_layout(model, engine).groups[0].page_bytes


def test_chunked_attention_has_its_own_groups_since_0_17() -> None:
    """Llama-4's pattern of 36 chunked and 12 full layers makes four groups of 12, one group of 48 before 0.17."""
    model = with_layers(("chunked", 36, 8192), ("full", 12, None))
    now = kv_cache_layout(model, make_engine(model, vllm_version="0.17.1"))
    before = kv_cache_layout(model, make_engine(model, vllm_version="0.15.1"))
    assert [group.num_layers for group in now.groups] == [12, 12, 12, 12]
    assert [group.num_layers for group in before.groups] == [48]


def test_attention_blocks_grow_to_the_size_of_a_linear_state() -> None:
    """Qwen3-Next: states of 1,097,728 bytes and 2,048 bytes a token make blocks of 544 tokens, states padded to them."""
    model = with_layers(("linear", 36, None), ("full", 12, None), state_bytes=1_097_728, kv_heads=2, head_dim=256)
    layout = kv_cache_layout(model, make_engine(model))
    assert {group.page_bytes for group in layout.groups} == {544 * 2048}
    assert (layout.block_size, [group.num_layers for group in layout.groups]) == (544, [12, 12, 12, 12])


@pytest.mark.parametrize(("sliding", "sizes"), [(4, [4, 4]), (5, [5, 4]), (6, [3, 3, 4])])
def test_groups_are_split_unless_padding_is_cheap(sliding: int, sizes: list[int]) -> None:
    """Beside 4 full layers, 5 sliding ones stay one group of 5; 6, half as many again, are split."""
    model = with_layers(("sliding", sliding, 1024), ("full", 4, None))
    assert [group.num_layers for group in kv_cache_layout(model, make_engine(model)).groups] == sizes


@pytest.mark.parametrize(("window", "blocks"), [(1024, 5), (17, 3), (18, 3), (19, 4)])
def test_a_window_holds_its_tokens_and_those_in_flight(window: int, blocks: int) -> None:
    """A request keeps window - 1 tokens beside those in flight, in blocks that the window need not be aligned with."""
    group = KVGroup("sliding", window, 4, 16, 64)
    assert group.blocks_per_request(64, RequestLimits(15)) == blocks


def test_pages_of_two_sizes_become_one() -> None:
    """Layers with half the heads take twice the tokens a block, so that any block serves any group."""
    wide, narrow = with_layers(("full", 4, None)), with_layers(("sliding", 4, 1024), kv_heads=4)
    model = replace(wide, layers=(*wide.layers, *narrow.layers))
    layout = kv_cache_layout(model, make_engine(model))
    assert [(group.block_size, group.page_bytes) for group in layout.groups] == [(16, 65536), (32, 65536)]


def test_pages_that_do_not_divide_are_an_error() -> None:
    """Pages of 3 and 2 heads cannot be made one size by longer blocks."""
    three, two = with_layers(("full", 4, None), kv_heads=3), with_layers(("sliding", 4, 1024), kv_heads=2)
    model = replace(three, layers=(*three.layers, *two.layers))
    with pytest.raises(ConfigError, match="must have one size"):
        kv_cache_layout(model, make_engine(model))


def with_layers(
    *runs: tuple[Any, int, int | None], state_bytes: int = 0, kv_heads: int = 8, head_dim: int = 128
) -> ModelSpec:
    """A model whose layers are those runs of (kind, count, window)."""
    layers = [
        Layer(Attention(kind, 32, kv_heads, head_dim, head_dim, window, state_bytes=state_bytes), (), None, 0)
        for kind, count, window in runs
        for _ in range(count)
    ]
    return replace(make_model(replace(LLAMA_8B, max_model_len=32768)), layers=tuple(layers))


@given(st.integers(1, 4000), st.integers(1, 40), st.integers(0, 40), st.integers(1, 4096), st.sampled_from([1, 16, 64]))
def test_the_longest_request_is_the_longest(
    num_blocks: int, full: int, windows: int, window: int, block_size: int
) -> None:
    """What is reported as longest fits beside the null block, and one token more does not."""
    groups = [KVGroup("full", None, full, block_size, 64)]
    groups += [KVGroup("sliding", window, windows, block_size, 64)] if windows else []
    layout = KVCacheLayout(tuple(groups), RequestLimits(2048))
    longest = layout.longest_request(num_blocks, 100_000)
    assert longest == 0 or layout.blocks_per_request(longest) <= num_blocks - 1
    assert longest == 100_000 or layout.blocks_per_request(longest + 1) > num_blocks - 1
