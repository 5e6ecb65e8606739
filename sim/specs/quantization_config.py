"""`quantization_config` of a config.json (or a modelopt `hf_quant_config.json`), read as vLLM's quantisation methods read it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

from sim.errors import ModelError, nearest
from sim.specs.hf_config import HFConfig, text_config
from sim.specs.model import WeightFormat
from sim.specs.quantization import (
    EVERYTHING,
    FP8,
    INT8,
    MXFP4,
    MXFP8,
    NF4,
    NVFP4,
    ModulePatterns,
    Quantization,
    QuantizedGroup,
    fp8_block,
    integers_with_activations,
    module_patterns,
    two_of_four,
    weight_only_int,
)

ROUTED_EXPERTS = module_patterns(["experts"])


def read_quantization(config: HFConfig) -> Quantization:
    """How the checkpoint of this config.json is quantised, whether the model's or the language model's part says it."""
    section = _section(config)
    if not section.values:
        return Quantization()
    shared = {"expert_dtype": config.get("expert_dtype"), **section.values}
    return _read(HFConfig(shared, config.source))


def _section(config: HFConfig) -> HFConfig:
    """Where vLLM looks: old checkpoints of compressed-tensors call it `compression_config`."""
    where = config if config.has("quantization_config") else text_config(config)
    section = where.section("quantization_config")
    return section if section.values else config.section("compression_config")


def _read(config: HFConfig) -> Quantization:
    method = config.text("quant_method", default="modelopt" if config.has("quant_algo") else None).lower()
    if method not in READERS:
        known = ", ".join(READERS)
        hint = nearest(method, READERS)
        raise ModelError(f"{config.source}: `quant_method` {method!r} is not one of {known}.{hint}")
    groups = READERS[method](config)
    sparsity = config.section("sparsity_config")
    if not _is_2_of_4(sparsity):
        return Quantization(method, groups, _ignored(config))
    return Quantization(method, groups, _ignored(config), _targets(sparsity), _ignored(sparsity))


def _is_2_of_4(sparsity: HFConfig) -> bool:
    """What vLLM took to its sparse kernels; weights of another structure were always dense ones with zeros in them."""
    return sparsity.get("sparsity_structure") == "2:4" and sparsity.get("format") in ("dense", "sparse-24-bitmask")


def _ignored(config: HFConfig) -> ModulePatterns:
    lists = ("ignore", "modules_to_not_convert", "exclude_modules", "ignored_layers", "llm_int8_skip_modules")
    return module_patterns(name for key in lists for name in config.texts(key))


def _fp8(config: HFConfig) -> tuple[QuantizedGroup, ...]:
    everything = _everything(_fp8_format(config, "weight_block_size"))
    if config.text("expert_dtype", default="fp8") == "fp4":  # DeepSeek-V4
        return (QuantizedGroup(ROUTED_EXPERTS, MXFP4), *everything)
    return everything


def _fp8_format(config: HFConfig, block_key: str) -> WeightFormat:
    """With a scale a block where the config gives the block's two sides."""
    block = config.counts(block_key)
    if block and (len(block) != 2 or not all(block)):
        raise ModelError(f"{config.source}: `{block_key}` must be two numbers of at least 1, got {list(block)}.")
    return fp8_block(*block) if block else FP8


def _integers(config: HFConfig) -> tuple[QuantizedGroup, ...]:
    bits = config.size("bits", "w_bit", default=4)
    group_size = config.get("group_size", "q_group_size")
    zero_point = config.flag("zero_point") or not config.flag("sym", default=True)
    weight = weight_only_int(bits, _group_size(config, group_size), zero_point=zero_point)
    if config.get("checkpoint_format") == "marlin_24":
        weight = two_of_four(weight)
    targets = module_patterns(["model", "lm_head"]) if config.flag("lm_head") else EVERYTHING
    return (QuantizedGroup(targets, weight),)


def _bitsandbytes(config: HFConfig) -> tuple[QuantizedGroup, ...]:
    return _everything(NF4 if config.flag("load_in_4bit") else weight_only_int(8, None))


def _mxfp4(config: HFConfig) -> tuple[QuantizedGroup, ...]:
    """Experts only, as gpt-oss ships them; its ignore list names the rest."""
    del config
    return (QuantizedGroup(ROUTED_EXPERTS, MXFP4),)


def _compressed_tensors(config: HFConfig) -> tuple[QuantizedGroup, ...]:
    groups, storage = config.section("config_groups"), config.get("format")
    return tuple(_scheme_group(groups.section(name), storage) for name in groups.values)


def _targets(group: HFConfig) -> ModulePatterns:
    targets = group.texts("targets") or ("Linear",)
    return module_patterns("model" if target == "Linear" else target for target in targets)


def _scheme_group(group: HFConfig, storage: object) -> QuantizedGroup:
    weights = group.section("weights")
    if weights.text("type", default="int") == "float":
        return QuantizedGroup(_targets(group), _float_scheme(weights, weight_only=not group.has("input_activations")))
    weight = _integer_scheme(weights, group.section("input_activations"))
    return QuantizedGroup(_targets(group), two_of_four(weight) if storage == "marlin-24" else weight)


def _float_scheme(weights: HFConfig, *, weight_only: bool) -> WeightFormat:
    bits, group_size = weights.size("num_bits"), weights.get("group_size")
    match (bits, group_size):
        case (8, 32):
            weight = MXFP8
        case (8, _):
            weight = _fp8_format(weights, "block_structure")
        case (4, 32):
            weight = MXFP4
        case (4, _):
            weight = NVFP4
        case _:
            raise ModelError(f"{weights.source}: quantised floats have 4 or 8 bits, got `num_bits` {bits}.")
    return replace(weight, compute="bf16") if weight_only else weight


def _integer_scheme(weights: HFConfig, inputs: HFConfig) -> WeightFormat:
    bits = weights.size("num_bits")
    group_size = _group_size(weights, weights.get("group_size"))
    weight_only = weight_only_int(bits, group_size, zero_point=not weights.flag("symmetric", default=True))
    if not inputs.values:
        return weight_only
    activations = _activations(inputs)
    return INT8 if (bits, activations) == (8, "int8") else integers_with_activations(weight_only, activations)


def _activations(inputs: HFConfig) -> Literal["int4", "int8", "fp8"]:
    match (inputs.text("type", default="int"), inputs.size("num_bits")):
        case ("float", 8):
            return "fp8"
        case ("int", 8):
            return "int8"
        case ("int", 4):
            return "int4"
    raise ModelError(
        f"{inputs.source}: activations beside integer weights are int4, int8 or fp8, "
        f"got `type` {inputs.get('type')} and `num_bits` {inputs.get('num_bits')}."
    )


def _group_size(config: HFConfig, group_size: object) -> int | None:
    """Weights a scale; -1 and absence mean one a channel, too few to count."""
    return None if group_size in (None, -1) else config.size("group_size", "q_group_size")


def _modelopt(config: HFConfig) -> tuple[QuantizedGroup, ...]:
    layers = config.section("quantized_layers")
    if not layers.values:
        return _everything(_modelopt_format(config))
    return tuple(
        QuantizedGroup(module_patterns([name]), _modelopt_format(layers.section(name))) for name in layers.values
    )


def _modelopt_format(config: HFConfig) -> WeightFormat:
    algorithm = config.text("quant_algo").upper()
    if algorithm == "W4A8_AWQ":
        raise ModelError(
            f"{config.source}: `quant_algo` W4A8_AWQ is loaded by no vLLM version; use a W4A16 or FP8 checkpoint of the model."
        )
    if algorithm not in MODELOPT_FORMATS:
        hint = nearest(algorithm, MODELOPT_FORMATS)
        raise ModelError(f"{config.source}: `quant_algo` {algorithm!r} is not known.{hint}")
    return MODELOPT_FORMATS[algorithm]


def _everything(weight: WeightFormat) -> tuple[QuantizedGroup, ...]:
    return (QuantizedGroup(EVERYTHING, weight),)


MODELOPT_FORMATS: Mapping[str, WeightFormat] = {
    "FP8": FP8,
    "FP8_PER_CHANNEL_PER_TOKEN": FP8,
    "FP8_PB_WO": fp8_block(),
    "MXFP8": MXFP8,
    "NVFP4": NVFP4,
    "W4A16_NVFP4": replace(NVFP4, compute="bf16"),
    "W4A16_AWQ": weight_only_int(4, 128),
    "W8A16": weight_only_int(8, None),
    "W8A8_SQ_PER_CHANNEL": INT8,
}

READERS: Mapping[str, Callable[[HFConfig], tuple[QuantizedGroup, ...]]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "modelopt_mixed": _modelopt,
    "mxfp4": _mxfp4,
    "awq": _integers,
    "awq_marlin": _integers,
    "gptq": _integers,
    "gptq_marlin": _integers,
    "auto-round": _integers,
    "bitsandbytes": _bitsandbytes,
}
