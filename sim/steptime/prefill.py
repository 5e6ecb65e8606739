"""Prefill attention: what a step's chunks ask of one layer, and how long a GPU's kernel takes over it.

What decodes add where they run in the same kernel, as in FlashAttention 2, is counted alike.
"""

from dataclasses import dataclass

from sim.specs.hardware import HardwareProfile
from sim.specs.model import Attention
from sim.specs.operator_fits import PrefillAttentionFit
from sim.steptime.operators import ACTIVATION_BYTES, TILE_ROWS, smooth_max

PrefillWork = tuple[float, float, float]
"""What a step asks of one layer's prefill attention: FLOPs, tiles (so many queries of one head) and bytes. Parts add up."""

SMALL_HEAD_DIM, SMALL_HEAD_TILE_ROWS = 64, 192
"""Tiles of small heads have more queries: FlashAttention's hopper/tile_size.h, and tables of five GPUs are met better by it on all of them."""


@dataclass(frozen=True, slots=True)
class PrefillAttention:
    """What chunks ask of one layer, of heads as one GPU holds them: FLOPs and bytes by the units of their work.

    Queries are computed in tiles of `tile_rows`; `flops_per_key` is a whole tile's against one key, with those that the softmax stands for. A
    linear layer's work goes by tokens and tiles alone. `window` bounds the keys read from before a chunk, `most_keys_seen` those that a query sees.
    """

    num_heads: int
    bytes_per_token: float
    flops_per_token: float = 0.0
    flops_per_key: float = 0.0
    bytes_per_key: float = 0.0
    bytes_per_tile: float = 0.0
    window: int | None = None
    most_keys_seen: int | None = None
    tile_rows: int = TILE_ROWS


def prefill_fit(attention: Attention, kv_dtype_bytes: float, gpu: HardwareProfile) -> PrefillAttentionFit:
    """The kernel of a layer: one of its own reads a cache of fp8, but MLA unpacks what it reads to 16 bits, and a linear layer reads none."""
    reads_fp8 = kv_dtype_bytes == 1 and attention.kind not in {"mla", "linear"}
    return gpu.operators.prefill_attention_fp8 if reads_fp8 else gpu.operators.prefill_attention


def prefill_attention(attention: Attention, kv_dtype_bytes: float, fit: PrefillAttentionFit) -> PrefillAttention:
    """One layer's prefill attention. MLA has keys and values for each head, unpacked from the latent."""
    heads, dims = attention.num_heads, attention.head_dim + attention.v_head_dim
    if attention.kind == "linear":
        # The state is updated and read by each token, and moved once a tile.
        return PrefillAttention(
            num_heads=heads,
            bytes_per_token=2 * ACTIVATION_BYTES * heads * dims,
            flops_per_token=_as_common_heads(4 * heads * attention.head_dim * attention.v_head_dim, fit),
            bytes_per_tile=2 * attention.state_bytes,
        )
    kv_heads = heads if attention.kind == "mla" else attention.num_kv_heads
    tile_rows = _tile_rows(attention)
    return PrefillAttention(
        num_heads=heads,
        bytes_per_token=ACTIVATION_BYTES * heads * dims,
        flops_per_key=2 * heads * fit.multiplied_dims(dims) * tile_rows,
        bytes_per_key=kv_dtype_bytes * kv_heads * dims,
        window=attention.window,
        most_keys_seen=attention.window or attention.index_topk,
        tile_rows=tile_rows,
    )


def _tile_rows(attention: Attention) -> int:
    return SMALL_HEAD_TILE_ROWS if attention.head_dim <= SMALL_HEAD_DIM else TILE_ROWS


def _as_common_heads(flops: float, fit: PrefillAttentionFit) -> float:
    """FLOPs without a softmax, at the rate that common heads have with theirs."""
    return flops * fit.compute_efficiency / fit.efficiency_of_common_heads


def prefill_work(layer: PrefillAttention, chunks: tuple[tuple[int, int], ...]) -> PrefillWork:
    """The sum over chunks, each of so many tokens behind so many computed before.

    A query is computed against what stands before it, and half of its tile.
    """
    window, most_keys_seen, tile_rows = layer.window, layer.most_keys_seen, layer.tile_rows
    num_tokens = num_tiles = keys_read = 0
    keys_seen = 0.0
    for chunk_tokens, computed_tokens in chunks:
        chunk_tiles = -(-chunk_tokens // tile_rows)
        num_tokens += chunk_tokens
        num_tiles += chunk_tiles
        keys_seen += chunk_tiles * (mean_keys_seen(chunk_tokens, computed_tokens, most_keys_seen) + tile_rows / 2)
        keys_read += chunk_tokens + (computed_tokens if window is None else min(computed_tokens, window))
    return (
        layer.flops_per_token * num_tokens + layer.flops_per_key * keys_seen,
        layer.num_heads * num_tiles,
        layer.bytes_per_token * num_tokens + layer.bytes_per_key * keys_read + layer.bytes_per_tile * num_tiles,
    )


def riding_work(
    num_decodes: int, context_tokens: float, attention: Attention, kv_dtype_bytes: float, fit: PrefillAttentionFit
) -> PrefillWork:
    """Decodes in the kernel of a step's chunks: each fills a tile, at the cost of `decode_rows` query rows.

    A linear layer's decodes read and write their state.
    """
    if attention.kind == "linear":
        return 0.0, 0.0, 2.0 * num_decodes * attention.state_bytes
    reads_at_most = attention.window or attention.index_topk
    context_tokens = min(context_tokens, num_decodes * reads_at_most) if reads_at_most else context_tokens
    dims = attention.head_dim + attention.v_head_dim
    return (
        2 * attention.num_heads * fit.multiplied_dims(dims) * fit.decode_rows * context_tokens,
        num_decodes * attention.num_heads,
        attention.kv_numbers_per_token * kv_dtype_bytes * context_tokens,
    )


def together(first: PrefillWork, second: PrefillWork) -> PrefillWork:
    """Both in one kernel."""
    return first[0] + second[0], first[1] + second[1], first[2] + second[2]


def mixed_attention_s(
    chunks: tuple[tuple[int, int], ...],
    num_decodes: int,
    context_tokens: float,
    attention: Attention,
    kv_dtype_bytes: float,
    gpu: HardwareProfile,
) -> float:
    """Seconds of one layer's chunks and decodes in one kernel, without the launch.

    Measured on RTX 4090 and RTX PRO 6000, where such calls take 1.5 times their parts apart: a decode's row fills a tile of
    its own, and each request gets as many tiles as the longest chunk has, most of which find nothing to do.
    """
    fit = prefill_fit(attention, kv_dtype_bytes, gpu)
    riding = riding_work(num_decodes, context_tokens, attention, kv_dtype_bytes, fit)
    work = together(prefill_work(prefill_attention(attention, kv_dtype_bytes, fit), chunks), riding)
    waves_s = fit.decode_wave_s * num_decodes * attention.num_heads / gpu.num_sms
    idle_s = fit.idle_tile_s * attention.num_heads * _idle_tiles(chunks, num_decodes, _tile_rows(attention))
    return prefill_attention_s(work, prefill_speed(fit, gpu)) + waves_s + idle_s


def _idle_tiles(chunks: tuple[tuple[int, int], ...], num_decodes: int, tile_rows: int) -> int:
    """Tiles of one head without queries; a decode has one with."""
    tiles = [-(-chunk_tokens // tile_rows) for chunk_tokens, _ in chunks]
    return (len(tiles) + num_decodes) * max(tiles) - sum(tiles) - num_decodes


def mean_keys_seen(chunk_tokens: float, computed_tokens: float, window: int | None) -> float:
    """How many tokens stand before a query of the chunk on average, counting at most `window` for each."""
    if window is None or computed_tokens + chunk_tokens <= window:
        return computed_tokens + chunk_tokens / 2
    if computed_tokens >= window:
        return window
    num_unbounded = window - computed_tokens
    unbounded = num_unbounded * (computed_tokens + num_unbounded / 2)
    return (unbounded + (chunk_tokens - num_unbounded) * window) / chunk_tokens


@dataclass(frozen=True, slots=True)
class PrefillSpeed:
    """What a GPU's prefill attention reaches; in few tiles, computing takes `wave_tiles` / tiles longer, relative."""

    seconds_per_flop: float
    seconds_per_byte: float
    wave_tiles: float


def prefill_speed(fit: PrefillAttentionFit, gpu: HardwareProfile) -> PrefillSpeed:
    """As fitted to that GPU's kernel."""
    return PrefillSpeed(
        seconds_per_flop=1 / (gpu.peak_flops["bf16"] * fit.compute_efficiency),
        seconds_per_byte=1 / (gpu.memory_bandwidth_bytes_per_s * fit.memory_efficiency),
        wave_tiles=fit.wave_penalty * gpu.num_sms,
    )


def prefill_terms(work: PrefillWork, speed: PrefillSpeed) -> tuple[float, float]:
    """Seconds that computing and moving take by themselves."""
    flops, num_tiles, moved_bytes = work
    compute_s = flops * speed.seconds_per_flop * (1 + speed.wave_tiles / num_tiles)
    return compute_s, moved_bytes * speed.seconds_per_byte


def prefill_attention_s(work: PrefillWork, speed: PrefillSpeed) -> float:
    """Seconds of one layer's attention over all chunks of a step, without the launch."""
    compute_s, memory_s = prefill_terms(work, speed)
    return smooth_max(memory_s, compute_s, 2)
