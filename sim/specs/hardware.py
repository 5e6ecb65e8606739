"""What a GPU is: peaks, memory, links, price, and the efficiencies fitted to its kernels; one YAML a GPU."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from sim.errors import ConfigError, ProfileError, nearest
from sim.inputs import is_there
from sim.specs.data import data_dir
from sim.specs.hardware_file import (
    DecodeAttentionBlock,
    ExpertsBlock,
    HardwareFile,
    HostBlock,
    MessageBlock,
    OperatorsBlock,
    PrefillAttentionBlock,
    ProfileFile,
)
from sim.specs.hardware_rules import complete, is_complete
from sim.specs.operator_fits import (
    AllReduceFit,
    ComputeDtype,
    DecodeAttentionFit,
    ElementwiseFit,
    ExpertsFit,
    GemmFit,
    HostFit,
    MessageFit,
    MessageFits,
    OperatorFits,
    PrefillAttentionFit,
    SamplerFit,
)
from sim.specs.strict_yaml import checked, read_yaml
from sim.units import GIB, GIGA, NS, TERA, US

Confidence = Literal["high", "medium", "low"]
LONGEST_LINE = 10_000


@dataclass(frozen=True, slots=True)
class HardwareProfile:
    """Frozen facts about one GPU, in SI units.

    `memory_bytes` is what CUDA reports as total. `link_bytes_per_s` is per direction, among up to `num_linked_gpus`;
    a GPU without NVLink or the like is linked by PCIe. `network_bytes_per_s`, per GPU and direction, leads out of a node of
    `gpus_per_node`. `peak_flops` is dense, by the dtype multiplied in.
    `price_source` says whose price it is and of when. `derived` names what the file did not give and a rule filled in, by
    its key there (`num_sms`, `operators.gemm`, ...). `source` is the name or the path that it was loaded by.
    """

    name: str
    label: str
    aliases: tuple[str, ...]
    architecture: str
    compute_capability: str
    confidence: Confidence
    num_sms: int
    memory_label_bytes: float
    memory_bytes: int
    memory_bandwidth_bytes_per_s: float
    peak_flops: Mapping[ComputeDtype, float]
    link_bytes_per_s: float
    num_linked_gpus: int
    pcie_bytes_per_s: float
    gpus_per_node: int
    network_bytes_per_s: float
    tdp_w: float
    price_usd_per_hour: float | None
    price_source: str | None
    operators: OperatorFits
    derived: tuple[str, ...] = ()
    source: str = field(default="", compare=False)

    @staticmethod
    def load(gpu: str | Path) -> "HardwareProfile":
        """The profile of that name, alias or YAML. Raises ProfileError for what is none."""
        return load_gpu(gpu)

    def at_price(self, usd_per_hour: float) -> "HardwareProfile":
        """The same GPU at another price per GPU hour. Raises ConfigError for what is no price."""
        if not 0 < usd_per_hour < math.inf:
            raise ConfigError(f"--price must be a positive number of USD per GPU hour, got {usd_per_hour:g}.")
        return replace(self, price_usd_per_hour=usd_per_hour, price_source="--price")

    def all_reduce_bytes_per_s(self, num_gpus: int) -> float:
        """The link that joins so many GPUs of one node: NVLink within its domain, PCIe beyond."""
        return self.link_bytes_per_s if num_gpus <= self.num_linked_gpus else self.pcie_bytes_per_s

    @property
    def num_gpus_together(self) -> int:
        """GPUs that reach each other without the network: a node's, or more where the link joins several nodes."""
        return max(self.gpus_per_node, self.num_linked_gpus)


def load_gpu(gpu: str | Path) -> HardwareProfile:
    """The profile of that name or alias (in any case), or in that YAML file.

    Raises ProfileError for an unknown name, with the nearest matches, and for an invalid file.
    """
    path = Path(gpu)
    bundled = _profiles_dir() / f"{str(gpu).lower()}.yaml"
    if path.suffix in {".yaml", ".yml"}:
        profile = _read_profile(path)
    else:
        profile = _bundled_profile(bundled) if is_there(bundled) else _by_alias(str(gpu))
    return replace(profile, source=str(gpu))


def profile_file(gpu: str | Path) -> Path:
    """The YAML of that name, alias or path. Raises ProfileError for an unknown name."""
    path = Path(gpu)
    return path if path.suffix in {".yaml", ".yml"} else _profiles_dir() / f"{load_gpu(gpu).name}.yaml"


def profile_values(gpu: str | Path) -> dict[str, Any]:
    """The complete profile as its YAML would say it. Raises as `load_gpu`."""
    return _read_file(profile_file(gpu)).model_dump(exclude_none=True, exclude_unset=True)


def profile_yaml(gpu: str | Path) -> str:
    """A YAML that loads as this very profile: the file itself where it is complete, else with what was derived.

    Raises as `load_gpu`.
    """
    path = profile_file(gpu)
    if is_complete(read_yaml(path, ProfileFile)):
        return path.read_text(encoding="utf-8")
    text = yaml.safe_dump(
        profile_values(gpu), sort_keys=False, default_flow_style=None, width=LONGEST_LINE, allow_unicode=True
    )
    return f"# Completed by servecast gpus; `derived` names what a rule filled in.\n{text}"


def known_gpus() -> list[HardwareProfile]:
    """All bundled profiles, by name."""
    return [_bundled_profile(path) for path in _bundled(_profiles_dir())]


def _profiles_dir() -> Path:
    return data_dir("hardware_profiles")


def _by_alias(gpu: str) -> HardwareProfile:
    profiles = {alias.lower(): profile for profile in known_gpus() for alias in (profile.name, *profile.aliases)}
    if gpu.lower() not in profiles:
        hint = nearest(gpu, profiles) or f" Known: {', '.join(sorted({p.name for p in profiles.values()}))}."
        raise ProfileError(f"GPU `{gpu}` is neither a known name nor the path of a YAML profile.{hint}")
    return profiles[gpu.lower()]


@cache
def _bundled_profile(path: Path) -> HardwareProfile:
    """Read once: what is bundled does not change while it is in use."""
    return _read_profile(path)


def _read_profile(path: Path) -> HardwareProfile:
    return hardware_profile(_read_file(path))


def _read_file(path: Path) -> HardwareFile:
    file = read_yaml(path, ProfileFile)
    return checked(complete(file, () if is_complete(file) else _complete_ones(_profiles_dir())), HardwareFile, path)


@cache
def _complete_ones(folder: Path) -> tuple[HardwareFile, ...]:
    """The bundled GPUs with complete files, from which all others are derived; read once."""
    files = [(path, read_yaml(path, ProfileFile)) for path in _bundled(folder)]
    return tuple(checked(complete(file, ()), HardwareFile, path) for path, file in files if is_complete(file))


def _bundled(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.yaml"))


def hardware_profile(file: HardwareFile) -> HardwareProfile:
    """The file's facts, in SI units."""
    pcie_bytes_per_s = file.pcie_gb_s.value * GIGA
    return HardwareProfile(
        name=file.name,
        label=file.label,
        aliases=tuple(file.aliases),
        architecture=file.architecture,
        compute_capability=file.compute_capability,
        confidence=file.confidence.value,
        num_sms=file.num_sms.value,
        memory_label_bytes=file.memory_label_gb.value * GIGA,
        memory_bytes=int(file.memory_usable_gib.value * GIB),
        memory_bandwidth_bytes_per_s=file.memory_bandwidth_tb_s.value * TERA,
        peak_flops={dtype: peak * TERA for dtype, peak in file.peak_tflops.by_dtype().items()},
        link_bytes_per_s=file.link_gb_s.value * GIGA if file.link_gb_s else pcie_bytes_per_s,
        num_linked_gpus=file.num_linked_gpus.value if file.num_linked_gpus else 1,
        pcie_bytes_per_s=pcie_bytes_per_s,
        gpus_per_node=file.gpus_per_node.value,
        network_bytes_per_s=file.network_gb_s.value * GIGA,
        tdp_w=file.tdp_w.value,
        price_usd_per_hour=file.price_usd_per_hour.value if file.price_usd_per_hour else None,
        price_source=file.price_usd_per_hour.source if file.price_usd_per_hour else None,
        operators=_fits(file.operators),
        derived=tuple(file.derived),
    )


def _fits(blocks: OperatorsBlock) -> OperatorFits:
    reduce, elementwise = blocks.all_reduce, blocks.elementwise
    return OperatorFits(
        gemm={
            dtype: GemmFit(
                b.compute_efficiency,
                b.memory_efficiency,
                b.launch_us * US,
                b.wave_penalty,
                b.basis,
                _points(b.by_rows),
                b.quantise_efficiency,
            )
            for dtype, b in blocks.gemm.items()
        },
        decode_attention=_decode_fit(blocks.decode_attention),
        decode_attention_fp8=_decode_fit(blocks.decode_attention_fp8),
        prefill_attention=_prefill_fit(blocks.prefill_attention),
        prefill_attention_fp8=_prefill_fit(blocks.prefill_attention_fp8),
        experts={dtype: _experts_fit(block) for dtype, block in blocks.experts.items()},
        experts_weight_only=_experts_fit(blocks.experts_weight_only),
        all_reduce=AllReduceFit(
            reduce.base_us * US,
            reduce.per_gpu_us * US,
            reduce.link_efficiency,
            reduce.basis,
            tuple((num_gpus, _points(factors)) for num_gpus, factors in sorted(reduce.by_bytes.items())),
        ),
        messages=MessageFits(*map(_message_fit, (blocks.messages.link, blocks.messages.pcie, blocks.messages.network))),
        elementwise=ElementwiseFit(elementwise.memory_efficiency, elementwise.launch_us * US, elementwise.basis),
        sampler=SamplerFit(
            blocks.sampler.sort_entry_ns * NS, blocks.sampler.sort_bytes_per_logit, blocks.sampler.basis
        ),
        host=_host_fit(blocks.host),
    )


def _points(factors: Mapping[int, float]) -> tuple[tuple[float, float], ...]:
    """Ascending."""
    return tuple(sorted((float(at), factor) for at, factor in factors.items()))


def _experts_fit(block: ExpertsBlock) -> ExpertsFit:
    return ExpertsFit(
        block.compute_efficiency,
        block.memory_efficiency,
        block.launch_us * US,
        block.token_ns * NS,
        block.row_moves,
        block.padded_rows,
        block.large_tile_reads,
        block.basis,
    )


def _message_fit(block: MessageBlock) -> MessageFit:
    return MessageFit(block.base_us * US, block.efficiency, block.basis)


def _decode_fit(decode: DecodeAttentionBlock) -> DecodeAttentionFit:
    return DecodeAttentionFit(
        decode.compute_efficiency,
        decode.memory_efficiency,
        decode.launch_us * US,
        decode.per_wave_us * US,
        decode.basis,
    )


def _prefill_fit(prefill: PrefillAttentionBlock) -> PrefillAttentionFit:
    return PrefillAttentionFit(
        prefill.compute_efficiency,
        prefill.memory_efficiency,
        prefill.launch_us * US,
        prefill.wave_penalty,
        prefill.decode_rows,
        prefill.decode_wave_us * US,
        prefill.idle_tile_ns * NS,
        prefill.basis,
        prefill.softmax_dims,
    )


def _host_fit(host: HostBlock) -> HostFit:
    return HostFit(
        host.step_us * US,
        host.request_us * US,
        host.exposed_us * US,
        host.launch_us * US,
        host.layer_us * US,
        host.gap_us * US,
        host.front_end_us * US,
        host.front_end_request_us * US,
        host.basis,
    )
