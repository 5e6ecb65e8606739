"""Attention with a cache a token, as matrices and heads: grouped-query attention, and MLA with DSA's indexer."""

from dataclasses import replace
from typing import NamedTuple

from sim.errors import ModelError
from sim.specs.layer_slot import Slot
from sim.specs.model import Attention, AttentionKind, Linear


class Mixer(NamedTuple):
    """The token-mixing half of a layer; `num_other_parameters` are those of its norms, sinks and convolutions."""

    attention: Attention
    linears: tuple[Linear, ...]
    num_other_parameters: int


class Heads(NamedTuple):
    """Query heads, K/V heads and the size of each; where K and V are one projection, it is stored once a matrix."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    shares_key_and_value: bool = False


def grouped_query_attention(slot: Slot, kind: AttentionKind) -> Mixer:
    """Full, sliding or chunked attention with a fused qkv_proj; an output gate doubles the queries."""
    heads, traits = _heads(slot, kind), slot.traits
    q_features = heads.num_heads * heads.head_dim
    kv_features = (1 if heads.shares_key_and_value else 2) * heads.num_kv_heads * heads.head_dim
    gated = 2 if slot.config.flag("attn_output_gate", default=traits.attention_output_gate) else 1
    has_bias = slot.config.flag("attention_bias")
    qkv_proj = slot.linear(
        "qkv_proj",
        "self_attn.q_proj",
        slot.hidden_size,
        gated * q_features + kv_features,
        "column",
        bias=has_bias if traits.qkv_bias is None else traits.qkv_bias,
    )
    o_bias = has_bias if traits.o_bias is None else traits.o_bias
    o_proj = slot.linear("o_proj", "self_attn.o_proj", q_features, slot.hidden_size, "row", bias=o_bias)
    sinks = heads.num_heads if traits.attention_sinks else 0
    attention = Attention(
        kind,
        heads.num_heads,
        heads.num_kv_heads,
        heads.head_dim,
        heads.head_dim,
        window=_window(slot, kind),
        norms_all_heads=traits.qk_norm == "full",
    )
    qkv_proj = replace(qkv_proj, kv_features=kv_features, num_kv_heads=heads.num_kv_heads)
    return Mixer(attention, (qkv_proj, o_proj), sinks + _qk_norm_parameters(slot, heads))


def _heads(slot: Slot, kind: AttentionKind) -> Heads:
    config = slot.config
    num_heads = config.size("num_attention_heads")
    num_kv_heads = config.size("num_key_value_heads", default=num_heads)
    if num_heads % num_kv_heads:
        raise ModelError(
            f"{config.source}: `num_attention_heads` {num_heads} must be a multiple of `num_key_value_heads` {num_kv_heads}."
        )
    head_dim = config.size("head_dim", default=max(1, slot.hidden_size // num_heads))
    if kind != "full" or not config.has("global_head_dim"):
        return Heads(num_heads, num_kv_heads, head_dim)
    # Gemma 4: layers that attend fully have larger and fewer heads, and may use keys as values
    num_kv_heads = config.size("num_global_key_value_heads", default=num_kv_heads)
    return Heads(num_heads, num_kv_heads, config.size("global_head_dim"), config.flag("attention_k_eq_v"))


def _window(slot: Slot, kind: AttentionKind) -> int | None:
    match kind:
        case "sliding":
            return slot.config.size("sliding_window")
        case "chunked":
            return slot.config.size("attention_chunk_size")
        case _:
            return None


def _qk_norm_parameters(slot: Slot, heads: Heads) -> int:
    traits = slot.traits
    if traits.qk_norm_key and not slot.config.flag(traits.qk_norm_key):
        return 0
    match traits.qk_norm:
        case "head":
            return 2 * heads.head_dim
        case "full":
            return (heads.num_heads + heads.num_kv_heads) * heads.head_dim
        case _:
            return 0


def multi_head_latent_attention(slot: Slot) -> Mixer:
    """DeepSeek's MLA: low-rank queries (where `q_lora_rank` is set) and one latent key-value vector a token."""
    config = slot.config
    num_heads, kv_rank = config.size("num_attention_heads"), config.size("kv_lora_rank")
    rope, nope = config.count("qk_rope_head_dim"), config.size("qk_nope_head_dim")
    v_head_dim, q_rank = config.size("v_head_dim"), config.count("q_lora_rank")
    kv_b_proj = slot.linear("kv_b_proj", "self_attn.kv_b_proj", kv_rank, num_heads * (nope + v_head_dim), "column")
    o_proj = slot.linear("o_proj", "self_attn.o_proj", num_heads * v_head_dim, slot.hidden_size, "row")
    queries = _mla_queries(slot, q_rank, num_heads * (nope + rope), kv_rank + rope)
    indexer, indexer_norm = _sparse_indexer(slot, q_rank) if config.has("index_topk") else ((), 0)
    attention = Attention(
        "mla",
        num_heads,
        num_kv_heads=1,
        head_dim=nope + rope,
        v_head_dim=v_head_dim,
        kv_lora_rank=kv_rank,
        qk_rope_head_dim=rope,
        index_topk=config.size("index_topk") if indexer else None,
        index_head_dim=config.size("index_head_dim") if indexer else 0,
    )
    gate = _output_gate(slot, num_heads * v_head_dim) if config.flag("mla_use_output_gate") else ()
    return Mixer(attention, (*queries, kv_b_proj, o_proj, *gate, *indexer), q_rank + kv_rank + indexer_norm)


def _output_gate(slot: Slot, features: int) -> tuple[Linear, ...]:
    """Kimi K3 gates the attention's output by a projection of its input."""
    return (slot.linear("g_proj", "self_attn.g_proj", slot.hidden_size, features, "column"),)


def _mla_queries(slot: Slot, q_rank: int, q_features: int, latent: int) -> tuple[Linear, ...]:
    hidden = slot.hidden_size
    if not q_rank:
        return (
            slot.linear("q_proj", "self_attn.q_proj", hidden, q_features, "column"),
            slot.linear("kv_a_proj_with_mqa", "self_attn.kv_a_proj_with_mqa", hidden, latent, "replicated"),
        )
    return (
        slot.linear("fused_qkv_a_proj", "self_attn.q_a_proj", hidden, q_rank + latent, "replicated"),
        slot.linear("q_b_proj", "self_attn.q_b_proj", q_rank, q_features, "column"),
    )


def _sparse_indexer(slot: Slot, q_rank: int) -> tuple[tuple[Linear, ...], int]:
    """DSA's lightning indexer, replicated on all ranks; its key norm has a weight and a bias."""
    heads, head_dim = slot.config.size("index_n_heads"), slot.config.size("index_head_dim")
    linears = (
        slot.linear("indexer.wq_b", "self_attn.indexer.wq_b", q_rank, heads * head_dim, "replicated"),
        slot.linear("indexer.wk", "self_attn.indexer.wk", slot.hidden_size, head_dim, "replicated"),
        Linear("indexer.weights_proj", slot.hidden_size, heads, "replicated"),
    )
    return linears, 2 * head_dim
