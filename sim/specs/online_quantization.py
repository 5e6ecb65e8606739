"""The `quantization` argument: quantising 16-bit weights as they load, or agreeing with what the checkpoint already is."""

from collections.abc import Mapping

from sim.errors import ConfigError, nearest
from sim.specs.model import WeightFormat
from sim.specs.quantization import (
    EVERYTHING,
    FP8,
    INT8,
    MXFP8,
    NF4,
    NVFP4,
    Quantization,
    QuantizedGroup,
    fp8_block,
    weight_only_int,
)
from sim.specs.quantization_config import READERS

# vLLM's online methods, and what checkpoints are stored in (fp4 is NVFP4, int4 AWQ's groups, llm-compressor's schemes)
ONLINE_FORMATS: Mapping[str, WeightFormat] = {
    "fp8": FP8,
    "fp8_per_tensor": FP8,
    "fp8_per_block": fp8_block(),
    "mxfp8": MXFP8,
    "bitsandbytes": NF4,
    "fp4": NVFP4,
    "int4": weight_only_int(4, 128),
    "W4A16": weight_only_int(4, 128),
    "W8A16": weight_only_int(8, None),
    "W8A8": INT8,
}
AHEAD_OF_TIME = ("fp4", "int4", "W4A16", "W8A16", "W8A8")
"""No flag of vLLM's: what a checkpoint is stored in. The last are llm-compressor's schemes of integers."""
PRECISIONS: Mapping[str, tuple[str, ...]] = {
    "fp8": ("fp8", "fp8_block", "mxfp8"),
    "fp4": ("nvfp4", "mxfp4"),
    "int4": ("int4",),
}


def quantize(own: Quantization, wanted: str | None, *, model: str) -> Quantization:
    """The checkpoint's own quantisation, or `wanted` for all linear layers and experts of a 16-bit checkpoint.

    Embedding and lm_head stay as they are. Raises ConfigError where `wanted` is unknown or contradicts the checkpoint.
    """
    if wanted is None or _agrees(own, wanted):
        return own
    if wanted not in ONLINE_FORMATS and wanted not in READERS:
        hint = nearest(wanted, ONLINE_FORMATS)
        raise ConfigError(f"`quantization` must be one of {', '.join(ONLINE_FORMATS)}, got {wanted!r}.{hint}")
    if own.method:
        raise ConfigError(
            f"`quantization` {wanted!r} contradicts {model}, whose checkpoint is {own.name} ({own.method})."
        )
    if wanted not in ONLINE_FORMATS:
        raise ConfigError(
            f"`quantization` {wanted!r} needs a checkpoint quantised that way; {model} has 16-bit weights."
        )
    return Quantization(wanted, (QuantizedGroup(EVERYTHING, ONLINE_FORMATS[wanted]),))


def _agrees(own: Quantization, wanted: str) -> bool:
    formats = {group.weight.name for group in own.groups}
    return wanted == own.method or wanted in formats or any(name in formats for name in PRECISIONS.get(wanted, ()))
