"""Whether a pass can write a state before its chunk's end too, and how long blocks are for the sake of states.

Read off vLLM 0.27 to 0.33: `get_kv_cache_spec` of the layers, v1/core/kv_cache_utils.py and `_align_hybrid_block_size` of platforms/interface.py.
"""

from math import lcm

from sim.specs.hardware import HardwareProfile
from sim.specs.model import ModelSpec, StateKind
from sim.specs.releases import Release

KERNEL_BLOCK_TOKENS = 16  # of attention kernels, the smallest
MLA_BLOCK_TOKENS = 128  # kernels for MLA split blocks of so many tokens evenly; since 0.27
FLASHINFER_CHECKPOINT_TOKENS = 64  # FLASHINFER_GDN_CHECKPOINT_ALIGNMENT of v1/attention/backends/gdn_attn.py
FLASHINFER_ARCHITECTURES = ("Hopper", "Blackwell", "Blackwell Ultra")
"""Those for which vLLM chooses FlashInfer's kernel for prefills of gated delta nets (`_resolve_gdn_prefill_backend`), and FlashKDA's for Kimi K3."""
FLASHINFER_KEY_DIM = 128  # on Blackwell
WRITTEN_BY_ANY_KERNEL: tuple[StateKind, ...] = ("mamba2",)


def writes_checkpoints(model: ModelSpec, gpu: HardwareProfile, release: Release) -> bool:
    """Of all layers that keep states, under prefix caching."""
    states = [layer.attention for layer in model.distinct_layers if layer.attention.state_kind is not None]
    for attention in states:
        kind = attention.state_kind
        if kind not in release.checkpointed_states:
            return False
        if kind in WRITTEN_BY_ANY_KERNEL:
            continue
        if gpu.architecture not in FLASHINFER_ARCHITECTURES:
            return False
        if gpu.architecture != "Hopper" and attention.head_dim != FLASHINFER_KEY_DIM:
            return False
    return bool(states)


def block_alignment_tokens(model: ModelSpec, release: Release, *, has_checkpoints: bool) -> int:
    """Blocks of models whose layers keep states are a multiple of so many tokens."""
    kinds = {layer.attention.kind for layer in model.distinct_layers}
    alignment = MLA_BLOCK_TOKENS if "mla" in kinds and release.aligns_mla_with_states else KERNEL_BLOCK_TOKENS
    if has_checkpoints and any(layer.attention.state_kind == "gated_delta_net" for layer in model.distinct_layers):
        return lcm(alignment, FLASHINFER_CHECKPOINT_TOKENS)
    return alignment
