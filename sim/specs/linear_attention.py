"""Mixers that keep a state a request instead of a cache a token: gated delta nets, Kimi delta attention and Mamba-2."""

from sim.specs.attention import Mixer
from sim.specs.layer_slot import Slot
from sim.specs.model import Attention, Linear, StateKind


def linear_attention(slot: Slot) -> Mixer:
    """The family's own, told by the keys it has."""
    if slot.config.has("mamba_num_heads"):
        return mamba2(slot)
    if slot.config.has("linear_attn_config"):
        return kimi_delta_attention(slot)
    return gated_delta_net(slot)


def gated_delta_net(slot: Slot) -> Mixer:
    """Qwen3-Next's and Qwen3.5's."""
    config, hidden = slot.config, slot.hidden_size
    key_heads, key_dim = config.size("linear_num_key_heads"), config.size("linear_key_head_dim")
    value_heads, value_dim = config.size("linear_num_value_heads"), config.size("linear_value_head_dim")
    values, kernel = value_heads * value_dim, config.size("linear_conv_kernel_dim")
    convolved = 2 * key_heads * key_dim + values
    linears = (
        slot.linear("in_proj_qkvz", "linear_attn.in_proj_qkv", hidden, convolved + values, "column"),
        slot.linear("in_proj_ba", "linear_attn.in_proj_b", hidden, 2 * value_heads, "column"),
        slot.linear("out_proj", "linear_attn.out_proj", values, hidden, "row"),
    )
    number_bytes = 4 if config.text("mamba_ssm_dtype", default="bfloat16") == "float32" else 2
    state_bytes = _convolution_bytes(convolved, kernel) + value_heads * value_dim * key_dim * number_bytes
    attention = Attention(
        "linear", value_heads, key_heads, key_dim, value_dim, state_bytes=state_bytes, state_kind="gated_delta_net"
    )
    return Mixer(attention, linears, kernel * convolved + 2 * value_heads + value_dim)


def kimi_delta_attention(slot: Slot) -> Mixer:
    """Kimi Linear's and K3's: a forget gate a channel, and an output gate of low or (K3) full rank."""
    config, hidden = slot.config.section("linear_attn_config"), slot.hidden_size
    heads, head_dim, kernel = config.size("num_heads"), config.size("head_dim"), config.size("short_conv_kernel_size")
    features = heads * head_dim
    linears = (
        slot.linear("qkv_proj", "self_attn.q_proj", hidden, 3 * features, "column"),
        slot.linear("b_proj", "self_attn.b_proj", hidden, heads, "column"),
        slot.linear("f_a_proj", "self_attn.f_a_proj", hidden, head_dim, "replicated"),
        slot.linear("f_b_proj", "self_attn.f_b_proj", head_dim, features, "column"),
        *_output_gate(slot, features, head_dim, is_full_rank=config.flag("use_full_rank_gate")),
        slot.linear("o_proj", "self_attn.o_proj", features, hidden, "row"),
    )
    state_bytes = _convolution_bytes(3 * features, kernel) + features * head_dim * 4  # the state is kept in fp32
    kind: StateKind = "kimi_k3" if config.flag("use_full_rank_gate") else "kimi_delta_attention"
    attention = Attention("linear", heads, heads, head_dim, head_dim, state_bytes=state_bytes, state_kind=kind)
    return Mixer(attention, linears, kernel * 3 * features + heads + features + head_dim)


def _output_gate(slot: Slot, features: int, rank: int, *, is_full_rank: bool) -> tuple[Linear, ...]:
    hidden = slot.hidden_size
    if is_full_rank:
        return (slot.linear("g_proj", "self_attn.g_proj", hidden, features, "column"),)
    return (
        slot.linear("g_a_proj", "self_attn.g_a_proj", hidden, rank, "replicated"),
        slot.linear("g_b_proj", "self_attn.g_b_proj", rank, features, "column"),
    )


def mamba2(slot: Slot) -> Mixer:
    """Nemotron-H's."""
    config, hidden = slot.config, slot.hidden_size
    heads, head_dim, state = (
        config.size("mamba_num_heads"),
        config.size("mamba_head_dim"),
        config.size("ssm_state_size"),
    )
    inner, kernel = heads * head_dim, config.size("conv_kernel", default=4)
    convolved = inner + 2 * config.size("n_groups", default=8) * state
    has_bias = config.flag("use_bias")
    linears = (
        slot.linear("in_proj", "mixer.in_proj", hidden, inner + convolved + heads, "column", bias=has_bias),
        slot.linear("out_proj", "mixer.out_proj", inner, hidden, "row", bias=has_bias),
    )
    state_bytes = _convolution_bytes(convolved, kernel) + inner * state * 4  # mamba_ssm_cache_dtype float32
    attention = Attention("linear", heads, heads, state, head_dim, state_bytes=state_bytes, state_kind="mamba2")
    convolution = convolved * (kernel + config.flag("use_conv_bias", default=True))
    return Mixer(attention, linears, convolution + 3 * heads + inner)


def _convolution_bytes(channels: int, kernel: int) -> int:
    """The last inputs of a causal convolution, in 16 bits."""
    return 2 * channels * (kernel - 1)
