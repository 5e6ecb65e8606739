"""DeepSeek-V4's attention: one shared 512-number key-value a token, compressed 4- or 128-fold beyond a short window.

Matrices as in transformers' `deepseek_v4`. The cache is counted by the numbers that stay per token of context; the
window of uncompressed tokens beside them is constant and left out.
"""

from sim.specs.attention import Mixer
from sim.specs.layer_slot import Slot
from sim.specs.model import Attention, AttentionKind, Linear

SPARSE_RATIO = 4
HEAVY_RATIO = 128


def compressed_attention(slot: Slot, kind: str) -> Mixer:
    """A layer of `kind` sliding, compressed sparse (with an indexer) or heavily compressed attention."""
    config, hidden = slot.config, slot.hidden_size
    heads, head_dim, q_rank = config.size("num_attention_heads"), config.size("head_dim"), config.size("q_lora_rank")
    groups, o_rank = config.size("o_groups"), config.size("o_lora_rank")
    linears = (
        slot.linear("fused_qkv_a_proj", "self_attn.q_a_proj", hidden, q_rank + head_dim, "replicated"),
        slot.linear("q_b_proj", "self_attn.q_b_proj", q_rank, heads * head_dim, "column"),
        slot.linear("o_a_proj", "self_attn.o_a_proj", heads * head_dim // groups, groups * o_rank, "column"),
        slot.linear("o_b_proj", "self_attn.o_b_proj", groups * o_rank, hidden, "row"),
    )
    compressor, compressor_others = _compressor(slot, kind, head_dim)
    others = q_rank + head_dim + heads + compressor_others + _hyper_connections(slot)
    return Mixer(_attention(slot, kind, heads, head_dim), (*linears, *compressor), others)


def _attention(slot: Slot, kind: str, heads: int, head_dim: int) -> Attention:
    config = slot.config
    match kind:
        case "compressed_sparse_attention":
            return Attention(
                "mla",
                heads,
                1,
                head_dim,
                head_dim,
                kv_lora_rank=head_dim // SPARSE_RATIO,
                index_topk=SPARSE_RATIO * config.size("index_topk"),
                index_head_dim=config.size("index_head_dim") // SPARSE_RATIO,
            )
        case "heavily_compressed_attention":
            return Attention("mla", heads, 1, head_dim, head_dim, kv_lora_rank=head_dim // HEAVY_RATIO)
        case _:
            sliding: AttentionKind = "sliding"
            return Attention(sliding, heads, 1, head_dim, 0, window=config.size("sliding_window"))


def _compressor(slot: Slot, kind: str, head_dim: int) -> tuple[tuple[Linear, ...], int]:
    """Key-value and gate projections, and the count of position biases and norms."""
    hidden = slot.hidden_size
    match kind:
        case "compressed_sparse_attention":  # overlapping windows: twice the width
            main = Linear("compressor", hidden, 4 * head_dim, "replicated")
            indexer, others = _indexer(slot)
            return (main, *indexer), others + SPARSE_RATIO * 2 * head_dim + head_dim
        case "heavily_compressed_attention":
            return (Linear("compressor", hidden, 2 * head_dim, "replicated"),), HEAVY_RATIO * head_dim + head_dim
        case _:
            return (), 0


def _indexer(slot: Slot) -> tuple[tuple[Linear, ...], int]:
    config, hidden = slot.config, slot.hidden_size
    heads, head_dim = config.size("index_n_heads"), config.size("index_head_dim")
    linears = (
        Linear("indexer.compressor", hidden, 4 * head_dim, "replicated"),
        slot.linear(
            "indexer.wq_b", "self_attn.indexer.wq_b", config.size("q_lora_rank"), heads * head_dim, "replicated"
        ),
        Linear("indexer.weights_proj", hidden, heads, "replicated"),
    )
    return linears, SPARSE_RATIO * 2 * head_dim + head_dim


def _hyper_connections(slot: Slot) -> int:
    """Both halves of a layer mix `hc_mult` residual streams by three small maps."""
    streams = slot.config.count("hc_mult")
    maps = (2 + streams) * streams
    return 2 * (maps * streams * slot.hidden_size + maps + 3)
