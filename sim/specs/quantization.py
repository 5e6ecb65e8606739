"""Which weights of a checkpoint are quantised, and in which format."""

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from sim.errors import ModelError
from sim.specs.model import BF16, WeightFormat

FP8 = WeightFormat("fp8", 8.0, 0.0, "fp8")  # one scale a tensor or an output channel: too few to count
MXFP8 = WeightFormat("mxfp8", 8.0, 8 / 32, "fp8")  # OCP MX: an 8-bit scale for 32 weights
MXFP4 = WeightFormat("mxfp4", 4.0, 8 / 32, "bf16")  # OCP MX: an 8-bit scale for 32 weights; vLLM multiplies in bf16
NVFP4 = WeightFormat("nvfp4", 4.0, 8 / 16, "fp4")  # an fp8 scale for 16 weights
INT8 = WeightFormat("int8", 8.0, 0.0, "int8")
NF4 = WeightFormat("nf4", 4.0, 32 / 64, "bf16", unpacked_first=True)  # bitsandbytes: a 32-bit scale for 64 weights


def fp8_block(rows: int = 128, columns: int = 128) -> WeightFormat:
    """DeepSeek's format: a 32-bit scale for each block of weights."""
    return WeightFormat("fp8_block", 8.0, 32 / (rows * columns), "fp8")


def weight_only_int(bits: int, group_size: int | None, *, zero_point: bool = False) -> WeightFormat:
    """AWQ and GPTQ: a 16-bit scale a group, and a zero point of the weight's width; multiplied in bf16."""
    scale_bits = (16 + (bits if zero_point else 0)) / group_size if group_size else 0.0
    return WeightFormat(f"int{bits}", float(bits), scale_bits, "bf16")


def integers_with_activations(weight: WeightFormat, activations: Literal["int4", "int8", "fp8"]) -> WeightFormat:
    """`weight`, integers of fewer than 8 bits, with quantised inputs: W4A8 and W4A4. The one GPU kernel computes in fp8."""
    name = f"w{weight.bits:.0f}a{activations[-1]}_{activations}"
    return replace(weight, name=name, compute="fp8", activations=activations)


KEPT_INDEX_BITS = 2  # the place of a kept weight among its four; K / 8 bytes of `meta` in vLLM's w4a16_24 and CUTLASS


def two_of_four(weight: WeightFormat) -> WeightFormat:
    """`weight` with two of any four numbers kept: half the bits, and an index for each that is kept."""
    scale_bits = weight.scale_bits + KEPT_INDEX_BITS / 2
    return replace(weight, name=f"{weight.name}_2of4", bits=weight.bits / 2, scale_bits=scale_bits, is_2_of_4=True)


TWO_OF_FOUR_IN_CUTLASS = (BF16, FP8, INT8)  # what vLLM's sparse kernels multiply; other formats it loads as dense ones


@dataclass(frozen=True, slots=True)
class ModulePatterns:
    """Module names as checkpoints list them: whole paths, parts of paths, globs, or `re:` and a regular expression."""

    literals: frozenset[str]
    expressions: tuple[re.Pattern[str], ...]

    def match(self, module: str) -> bool:
        """Whether `module` (a canonical path) is named, or lies below one that is."""
        return (bool(self.literals) and self._is_literal(module)) or any(
            expression.match(name) for expression in self.expressions for name in (module, f"language_model.{module}")
        )

    def _is_literal(self, module: str) -> bool:
        parts = module.split(".")
        return any(
            ".".join(parts[i:j]) in self.literals for i in range(len(parts)) for j in range(i + 1, len(parts) + 1)
        )


def module_patterns(names: Iterable[str]) -> ModulePatterns:
    """Raises ModelError for a `re:` name that is no regular expression."""
    literals: set[str] = set()
    expressions: list[re.Pattern[str]] = []
    for name in names:
        if name.startswith("re:"):
            expressions.append(_compiled(name.removeprefix("re:")))
        elif "*" in name:
            glob = fnmatch.translate(_canonical(name)).removesuffix(r"\Z")
            expressions.append(re.compile(rf"(?:.*\.)?(?:{glob})(?:\..*)?\Z"))
        else:
            literals.add(_canonical(name))
    return ModulePatterns(frozenset(literals), tuple(expressions))


def _compiled(expression: str) -> re.Pattern[str]:
    try:
        return re.compile(expression)
    except re.error as error:
        raise ModelError(
            f"The quantisation names modules by {expression!r}, which is no regular expression: {error}."
        ) from None


def _canonical(module: str) -> str:
    """Multimodal checkpoints nest the text model; its layers are `model.layers` all the same."""
    return module.replace("model.language_model.", "model.").removeprefix("language_model.")


EVERYTHING = module_patterns(["model"])
NOTHING = module_patterns([])


@dataclass(frozen=True, slots=True)
class QuantizedGroup:
    """Modules stored in one format."""

    targets: ModulePatterns
    weight: WeightFormat


@dataclass(frozen=True, slots=True)
class Quantization:
    """The first group that names a module gives its format; what `ignored` names stays bf16, as does all else.

    Of modules that `sparse` names and `never_sparse` does not, two weights of four are kept.
    """

    method: str | None = None
    groups: tuple[QuantizedGroup, ...] = ()
    ignored: ModulePatterns = NOTHING
    sparse: ModulePatterns = NOTHING
    never_sparse: ModulePatterns = NOTHING

    @property
    def name(self) -> str | None:
        """The formats in use, such as fp8_block or nvfp4; None for dense 16-bit weights."""
        weights = [group.weight for group in self.groups]
        if self.sparse != NOTHING:
            weights = [_sparse(weight) for weight in weights or [BF16]]
        return "+".join(dict.fromkeys(weight.name for weight in weights)) or None

    def format_of(self, module: str) -> WeightFormat:
        """How the weights of `module` (such as model.layers.3.self_attn.q_proj) are stored."""
        if self.ignored.match(module):
            return BF16
        weight = next((group.weight for group in self.groups if group.targets.match(module)), BF16)
        return _sparse(weight) if self.sparse.match(module) and not self.never_sparse.match(module) else weight


def _sparse(weight: WeightFormat) -> WeightFormat:
    return two_of_four(weight) if weight in TWO_OF_FOUR_IN_CUTLASS else weight
