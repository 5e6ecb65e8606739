"""The YAML schema of hardware profiles, in spec-sheet units; every number stands beside its source."""

from collections.abc import Mapping
from typing import Annotated, Generic, Literal, TypeVar

from pydantic import Field, model_validator

from sim.specs.operator_fits import Basis, ComputeDtype
from sim.specs.strict_yaml import Count, NotNegative, Positive, Strict

ValueT = TypeVar("ValueT")


class Sourced(Strict, Generic[ValueT]):
    value: ValueT
    source: Annotated[str, Field(min_length=1)]


class FitBlock(Strict):
    """`source` says what the block was fitted on or borrowed from, and how far it was off on shapes held out."""

    basis: Basis
    source: Annotated[str, Field(min_length=1)]


class GemmBlock(FitBlock):
    compute_efficiency: Positive
    memory_efficiency: Positive
    launch_us: NotNegative
    wave_penalty: NotNegative = 0.0


class DecodeAttentionBlock(FitBlock):
    compute_efficiency: Positive
    memory_efficiency: Positive
    launch_us: NotNegative
    per_wave_us: NotNegative


class PrefillAttentionBlock(FitBlock):
    compute_efficiency: Positive
    memory_efficiency: Positive
    launch_us: NotNegative
    wave_penalty: NotNegative
    decode_rows: NotNegative = 0.0
    decode_wave_us: NotNegative = 0.0


class ExpertsBlock(FitBlock):
    compute_efficiency: Positive
    memory_efficiency: Positive
    launch_us: NotNegative


class AllReduceBlock(FitBlock):
    base_us: NotNegative
    per_gpu_us: NotNegative
    link_efficiency: Positive


class ElementwiseBlock(FitBlock):
    memory_efficiency: Positive
    launch_us: NotNegative


class HostBlock(FitBlock):
    step_us: NotNegative
    request_us: NotNegative
    exposed_us: NotNegative
    launch_us: NotNegative
    front_end_us: NotNegative
    front_end_request_us: NotNegative


class SamplerBlock(FitBlock):
    sort_entry_ns: NotNegative
    sort_bytes_per_logit: NotNegative


class OperatorsBlock(Strict):
    gemm: Mapping[ComputeDtype, GemmBlock]
    decode_attention: DecodeAttentionBlock
    decode_attention_fp8: DecodeAttentionBlock
    prefill_attention: PrefillAttentionBlock
    experts: Mapping[ComputeDtype, ExpertsBlock]
    all_reduce: AllReduceBlock
    elementwise: ElementwiseBlock
    sampler: SamplerBlock
    host: HostBlock


class CalibrationBlock(Strict):
    """Which runs a profile was calibrated on, by what factors, and how far it was off before and after, in %."""

    base: str
    runs: list[str]
    scales: Mapping[str, Positive]
    errors: Mapping[str, Mapping[str, NotNegative]]
    verdict: str


class HardwareFile(Strict):
    """One GPU. `memory_usable_gib` is what CUDA reports as total; links are bandwidths per direction.

    `link_gb_s` joins up to `num_linked_gpus`; a GPU without such a link has neither and communicates over PCIe.
    """

    name: Annotated[str, Field(min_length=1)]
    label: Annotated[str, Field(min_length=1)]
    aliases: list[str] = Field(default_factory=list)
    architecture: str
    compute_capability: str
    confidence: Sourced[Literal["high", "medium", "low"]]
    num_sms: Sourced[Count]
    memory_label_gb: Sourced[Positive]
    memory_usable_gib: Sourced[Positive]
    memory_bandwidth_tb_s: Sourced[Positive]
    peak_tflops: Mapping[ComputeDtype, Sourced[Positive]]
    link_gb_s: Sourced[Positive] | None = None
    num_linked_gpus: Sourced[Count] | None = None
    pcie_gb_s: Sourced[Positive]
    tdp_w: Sourced[Positive]
    price_usd_per_hour: Sourced[Positive] | None = None
    note: str = ""
    calibration: CalibrationBlock | None = None
    operators: OperatorsBlock

    @model_validator(mode="after")
    def _each_peak_has_its_efficiency(self) -> "HardwareFile":
        if "bf16" not in self.peak_tflops:
            raise ValueError("must give `peak_tflops.bf16`")
        for operator in ("gemm", "experts"):
            dtypes = set(getattr(self.operators, operator))
            if dtypes != set(self.peak_tflops):
                raise ValueError(f"must give `operators.{operator}` for exactly the dtypes of `peak_tflops`")
        return self

    @model_validator(mode="after")
    def _a_link_joins_a_number_of_gpus(self) -> "HardwareFile":
        if (self.link_gb_s is None) != (self.num_linked_gpus is None):
            raise ValueError("must give `link_gb_s` and `num_linked_gpus` together or neither")
        return self
