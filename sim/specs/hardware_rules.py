"""Fills in the figures that a short hardware profile lacks from the nearest known GPU; each names its rule."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sim.specs.hardware_file import HardwareFile, OperatorsBlock, ProfileFile
from sim.specs.operator_fits import ComputeDtype

Values = dict[str, Any]
OPERATORS = tuple(OperatorsBlock.model_fields)
BY_DTYPE = ("gemm", "experts")
FIGURES = ("num_sms", "memory_usable_gib", "pcie_gb_s", "gpus_per_node", "network_gb_s", "tdp_w")
NOT_FIGURES = ("label", "architecture", "compute_capability", "confidence")


def is_complete(file: ProfileFile) -> bool:
    """Whether the file leaves nothing open."""
    blocks = file.operators.model_fields_set if file.operators else set()
    return file.model_fields_set >= {*FIGURES, *NOT_FIGURES} and blocks >= set(OPERATORS)


def complete(file: ProfileFile, known: Iterable[HardwareFile]) -> Values:
    """The file's values, those that it leaves open from the nearest of the `known` GPUs and named in `derived`."""
    values = file.model_dump(exclude_none=True, exclude_unset=True)
    if not is_complete(file):
        everyone = list(known)
        donor, is_kin = nearest_gpu(file, everyone)
        values |= _names(file, donor) | _figures(file, donor, everyone)
        values["operators"] = _operators(file, donor, everyone, is_kin=is_kin)
        values["derived"] = [*dict.fromkeys([*file.derived, *_derived(file)])]
    return values


def nearest_gpu(file: ProfileFile, known: Iterable[HardwareFile]) -> tuple[HardwareFile, bool]:
    """The known GPU with the most alike bf16 peak, bandwidth, memory and dtypes, and whether it is of the same kind.

    Of the same kind is one of its compute capability, else of its architecture. Where the file gives neither, or none is
    known, all GPUs are asked and none is of the same kind.
    """
    everyone = [gpu for gpu in known if (gpu.architecture == "CPU") == (file.architecture == "CPU")]
    capable = [gpu for gpu in everyone if gpu.compute_capability == file.compute_capability]
    related = [gpu for gpu in everyone if gpu.architecture.lower() == (file.architecture or "").lower()]
    kin = capable or related
    return min(kin or everyone, key=lambda gpu: _distance(file, gpu)), bool(kin)


def _distance(file: ProfileFile, gpu: HardwareFile) -> float:
    pairs = (
        (file.peak_tflops.bf16.value, gpu.peak_tflops.bf16.value),
        (file.memory_bandwidth_tb_s.value, gpu.memory_bandwidth_tb_s.value),
        (file.memory_label_gb.value, gpu.memory_label_gb.value),
    )
    other_dtypes = file.peak_tflops.by_dtype().keys() ^ gpu.peak_tflops.by_dtype().keys()
    return sum(abs(math.log(own / its)) for own, its in pairs) + len(other_dtypes)


def _names(file: ProfileFile, donor: HardwareFile) -> Values:
    by_rule = {
        "label": file.name,
        "architecture": donor.architecture,
        "compute_capability": donor.compute_capability,
        "confidence": {"value": "low", "source": "by rule: some of it was derived"},
    }
    return {key: value for key, value in by_rule.items() if getattr(file, key) is None}


def _figures(file: ProfileFile, donor: HardwareFile, known: Iterable[HardwareFile]) -> Values:
    """Units grow with the peak; of the memory on the box as much is usable as on the other's; the rest is as elsewhere."""
    pcie_gb_s = min(gpu.pcie_gb_s.value for gpu in known if gpu.architecture == donor.architecture)
    larger = file.peak_tflops.bf16.value / donor.peak_tflops.bf16.value
    usable = donor.memory_usable_gib.value / donor.memory_label_gb.value
    by_rule: Mapping[str, tuple[float, str]] = {
        "num_sms": (max(1, round(donor.num_sms.value * larger)), f"those of {donor.name} x the ratio of bf16 peaks"),
        "memory_usable_gib": (
            float(f"{file.memory_label_gb.value * usable:.6g}"),
            f"the share of the label that {donor.name} has",
        ),
        "pcie_gb_s": (pcie_gb_s, f"the lowest of known GPUs of architecture {donor.architecture}"),
        "gpus_per_node": (donor.gpus_per_node.value, f"as {donor.name}"),
        "network_gb_s": (donor.network_gb_s.value, f"that of {donor.name}"),
        "tdp_w": (donor.tdp_w.value, f"that of {donor.name}"),
    }
    return {
        key: {"value": value, "source": f"by rule: {source}"}
        for key, (value, source) in by_rule.items()
        if getattr(file, key) is None
    }


def _operators(file: ProfileFile, donor: HardwareFile, known: list[HardwareFile], *, is_kin: bool) -> Values:
    """The other's efficiencies, as fractions of this GPU's peaks; generic ones where it is of another kind."""
    given = file.operators.model_dump(exclude_none=True, exclude_unset=True) if file.operators else {}
    borrowed: Values = {name: _borrowed(donor, name, is_kin=is_kin) for name in OPERATORS if name not in BY_DTYPE}
    for dtype in file.peak_tflops.by_dtype():
        lender = donor
        if dtype not in donor.peak_tflops.by_dtype():
            lender = min(_with_dtype(dtype, known), key=lambda gpu: _distance(file, gpu))
        for name in BY_DTYPE:
            block = _borrowed(lender, name, dtype, is_kin=is_kin and lender is donor)
            borrowed.setdefault(name, {})[dtype] = block
    return borrowed | given


def _with_dtype(dtype: ComputeDtype, known: Iterable[HardwareFile]) -> Iterator[HardwareFile]:
    return (gpu for gpu in known if dtype in gpu.peak_tflops.by_dtype())


def _borrowed(lender: HardwareFile, operator: str, dtype: ComputeDtype | None = None, *, is_kin: bool) -> Values:
    blocks = getattr(lender.operators, operator)
    block: Values = (blocks[dtype] if dtype else blocks).model_dump()
    if operator == "messages":
        return {link: _as_borrowed(fit, lender, is_kin=is_kin) for link, fit in block.items()}
    return _as_borrowed(block, lender, is_kin=is_kin)


def _as_borrowed(block: Values, lender: HardwareFile, *, is_kin: bool) -> Values:
    basis = "derived" if is_kin and block["basis"] != "generic" else "generic"
    return {**block, "basis": basis, "source": f"by rule: as {lender.name}, the nearest known GPU; {block['source']}"}


def _derived(file: ProfileFile) -> list[str]:
    blocks = file.operators.model_fields_set if file.operators else set()
    figures = [key for key in FIGURES if getattr(file, key) is None]
    return [*figures, *(f"operators.{name}" for name in OPERATORS if name not in blocks)]
