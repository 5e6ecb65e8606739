"""The YAML schema of hardware profiles, in spec-sheet units: what a file may say, and what a complete one does say.

A file of ten lines is enough (`ProfileFile`); `sim.specs.hardware_rules` derives the rest (`HardwareFile`).
"""

from collections.abc import Mapping
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from sim.specs.operator_fits import Basis, ComputeDtype
from sim.specs.strict_yaml import Count, NotNegative, Positive, Strict

ValueT = TypeVar("ValueT")
Text = Annotated[str, Field(min_length=1)]
GIVEN = "given in the profile"
Memory = Annotated[
    Positive, Field(le=100_000)
]  # 100 TB: a GPU's, whose every block has a place in the simulation's memory


class Sourced(Strict, Generic[ValueT]):
    """A figure beside its source. Written without one, it is the file's own."""

    value: ValueT
    source: Text

    @model_validator(mode="before")
    @classmethod
    def _or_a_bare_figure(cls, written: Any) -> Any:
        return written if isinstance(written, Mapping) else {"value": written, "source": GIVEN}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        whole = handler(schema)
        return {"anyOf": [handler.resolve_ref_schema(whole)["properties"]["value"], whole]}


class FitBlock(Strict):
    """`source` says what the block was fitted on or borrowed from, and how far it was off on shapes held out."""

    basis: Basis
    source: Annotated[str, Field(min_length=1)]


class GemmBlock(FitBlock):
    compute_efficiency: Positive
    memory_efficiency: Positive
    launch_us: NotNegative
    wave_penalty: NotNegative = 0.0
    by_rows: Mapping[Count, Positive] = Field(default_factory=dict)
    quantise_efficiency: Positive = 0.8


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
    idle_tile_ns: NotNegative = 0.0
    softmax_dims: NotNegative = 0.0


class ExpertsBlock(FitBlock):
    compute_efficiency: Positive
    memory_efficiency: Positive
    launch_us: NotNegative
    token_ns: NotNegative = 0.0
    row_moves: NotNegative = 5.0
    padded_rows: NotNegative = 0.0
    large_tile_reads: NotNegative = 0.0


class AllReduceBlock(FitBlock):
    base_us: NotNegative
    per_gpu_us: NotNegative
    link_efficiency: Positive
    by_bytes: Mapping[Count, Mapping[Count, Positive]] = Field(default_factory=dict)


class MessageBlock(FitBlock):
    base_us: NotNegative
    efficiency: Positive


class MessagesBlock(Strict):
    link: MessageBlock
    pcie: MessageBlock
    network: MessageBlock


class ElementwiseBlock(FitBlock):
    memory_efficiency: Positive
    launch_us: NotNegative


class HostBlock(FitBlock):
    step_us: NotNegative
    request_us: NotNegative
    exposed_us: NotNegative
    launch_us: NotNegative
    layer_us: NotNegative
    gap_us: NotNegative
    front_end_us: NotNegative
    front_end_request_us: NotNegative


class SamplerBlock(FitBlock):
    sort_entry_ns: NotNegative
    sort_bytes_per_logit: NotNegative


class PartialOperators(Strict):
    """Efficiencies of kernels as fractions of the peaks in the same file, by operator; `gemm` and `experts` for each peak."""

    gemm: Mapping[ComputeDtype, GemmBlock] | None = None
    decode_attention: DecodeAttentionBlock | None = None
    decode_attention_fp8: DecodeAttentionBlock | None = None
    prefill_attention: PrefillAttentionBlock | None = None
    prefill_attention_fp8: PrefillAttentionBlock | None = None
    experts: Mapping[ComputeDtype, ExpertsBlock] | None = None
    experts_weight_only: ExpertsBlock | None = None
    all_reduce: AllReduceBlock | None = None
    messages: MessagesBlock | None = None
    elementwise: ElementwiseBlock | None = None
    sampler: SamplerBlock | None = None
    host: HostBlock | None = None


class OperatorsBlock(PartialOperators):
    """All of them."""

    gemm: Mapping[ComputeDtype, GemmBlock]
    decode_attention: DecodeAttentionBlock
    decode_attention_fp8: DecodeAttentionBlock
    prefill_attention: PrefillAttentionBlock
    prefill_attention_fp8: PrefillAttentionBlock
    experts: Mapping[ComputeDtype, ExpertsBlock]
    experts_weight_only: ExpertsBlock
    all_reduce: AllReduceBlock
    messages: MessagesBlock
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


class Peaks(Strict):
    """Dense peaks (halve what a sheet gives "with sparsity"), by the dtype that is multiplied in."""

    bf16: Annotated[Sourced[Positive], Field(description="TFLOPS, dense: of 16-bit floats")]
    fp8: Annotated[Sourced[Positive] | None, Field(description="TFLOPS, dense; none where it has no fp8")] = None
    fp4: Annotated[Sourced[Positive] | None, Field(description="TFLOPS, dense; none where it has no fp4")] = None
    int8: Annotated[Sourced[Positive] | None, Field(description="TOPS, dense; none where it has no int8")] = None

    def by_dtype(self) -> dict[ComputeDtype, float]:
        """Those that are given, in TFLOPS."""
        peaks: dict[ComputeDtype, Sourced[float] | None] = {
            "bf16": self.bf16,
            "fp8": self.fp8,
            "fp4": self.fp4,
            "int8": self.int8,
        }
        return {dtype: peak.value for dtype, peak in peaks.items() if peak}


class ProfileFile(Strict):
    """One GPU as a file describes it. Figures are plain numbers or `{value, source}`; what is absent is derived."""

    name: Annotated[Text, Field(description="what results call it; vLLM's defaults of an A100 go by its name")]
    label: Annotated[Text | None, Field(description="its full name")] = None
    aliases: Annotated[list[str], Field(description="other names")] = Field(default_factory=list)
    architecture: Annotated[Text | None, Field(description="such as Hopper, Ada, CDNA3")] = None
    compute_capability: Annotated[Text | None, Field(description="such as '9.0', in quotes; gfx942 for AMD's")] = None
    confidence: Annotated[Sourced[Literal["high", "medium", "low"]] | None, Field(description="in these figures")] = (
        None
    )
    num_sms: Annotated[Sourced[Count] | None, Field(description="streaming multiprocessors or compute units")] = None
    memory_label_gb: Annotated[Sourced[Memory], Field(description="GB, as on the box")]
    memory_usable_gib: Annotated[Sourced[Memory] | None, Field(description="GiB that CUDA reports as total")] = None
    memory_bandwidth_tb_s: Annotated[Sourced[Positive], Field(description="TB/s")]
    peak_tflops: Peaks
    link_gb_s: Annotated[
        Sourced[Positive] | None,
        Field(description="GB/s per direction over NVLink or the like; none where PCIe is all"),
    ] = None
    num_linked_gpus: Annotated[
        Sourced[Count] | None, Field(description="GPUs that the link joins; given with link_gb_s")
    ] = None
    pcie_gb_s: Annotated[Sourced[Positive] | None, Field(description="GB/s per direction")] = None
    gpus_per_node: Annotated[Sourced[Count] | None, Field(description="GPUs of one machine")] = None
    network_gb_s: Annotated[
        Sourced[Positive] | None,
        Field(description="GB/s per direction that each GPU has to other machines: InfiniBand or Ethernet"),
    ] = None
    tdp_w: Annotated[Sourced[Positive] | None, Field(description="W")] = None
    price_usd_per_hour: Annotated[Sourced[Positive] | None, Field(description="USD per GPU hour")] = None
    note: Annotated[str, Field(description="anything else")] = ""
    calibration: CalibrationBlock | None = None
    derived: Annotated[
        list[str], Field(description="keys that a rule filled in, as `gpus FILE --yaml` writes them")
    ] = Field(default_factory=list)
    operators: Annotated[
        PartialOperators | None, Field(description="efficiencies of kernels, as fractions of these peaks")
    ] = None

    @model_validator(mode="after")
    def _each_peak_has_its_efficiency(self) -> "ProfileFile":
        for operator in ("gemm", "experts"):
            blocks = getattr(self.operators, operator, None)
            if blocks is not None and set(blocks) != set(self.peak_tflops.by_dtype()):
                raise ValueError(f"must give `operators.{operator}` for exactly the dtypes of `peak_tflops`")
        return self

    @model_validator(mode="after")
    def _a_link_joins_a_number_of_gpus(self) -> "ProfileFile":
        if (self.link_gb_s is None) != (self.num_linked_gpus is None):
            raise ValueError("must give `link_gb_s` and `num_linked_gpus` together or neither")
        return self


class HardwareFile(ProfileFile):
    """One GPU, all of it. `memory_usable_gib` is what CUDA reports as total; links are bandwidths per direction.

    `link_gb_s` joins up to `num_linked_gpus`; a GPU without such a link has neither and communicates over PCIe. GPUs beyond
    `gpus_per_node` are reached over the network.
    """

    label: Text
    architecture: Text
    compute_capability: Text
    confidence: Sourced[Literal["high", "medium", "low"]]
    num_sms: Sourced[Count]
    memory_usable_gib: Sourced[Memory]
    pcie_gb_s: Sourced[Positive]
    gpus_per_node: Sourced[Count]
    network_gb_s: Sourced[Positive]
    tdp_w: Sourced[Positive]
    operators: OperatorsBlock
