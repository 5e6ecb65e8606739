"""Writes hardware_profiles/*.yaml from the reference catalogue of GPUs and the efficiencies fitted to measured kernels.

    python benchmarks/write_profiles.py ../shared

Nothing fitted is typed here: kernels' numbers come from `kernel_fits.json` (fit_kernels.py writes it), those of sampler, host and front end from
`serving_fits.json` (fit_serving.py writes it), of launches from `launch_fits.json` (fit_launches.py writes it), those of messages from `link_fits.json` (fit_links.py writes it), what boards have of their clocks from `clock_fits.json` (fit_clocks.py writes it), spec-sheet numbers from `catalog/gpus.csv`.
Typed are names, networks, which GPU borrows from which, the generic row, the host's parameters, prices and some memory sizes.
"""

import csv
import json
import math
import sys
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import yaml

from sim.specs.operator_fits import COMMON_DIMS

KERNEL_FITS = Path(__file__).with_name("kernel_fits.json")
OTHER_HOSTS = "h200-sxm"  # whose launches GPUs have of which none were measured
LINK_FITS = Path(__file__).with_name("link_fits.json")
CLOCK_FITS = Path(__file__).with_name("clock_fits.json")
SERVING_FITS = Path(__file__).with_name("serving_fits.json")
LAUNCH_FITS = Path(__file__).with_name("launch_fits.json")
PROFILES = Path(__file__).resolve().parents[1] / "hardware_profiles"
HEADER = (
    "# Written by benchmarks/write_profiles.py. Efficiencies under `operators` are fractions of the peaks in this file:\n"
    "# change both or neither. Links are per direction; peaks are dense, without sparsity.\n"
)


class Gpu(NamedTuple):
    """A row of the catalogue under its name here; `chip` is the GPU whose fits it takes, `is_chip` that it is this GPU."""

    catalogue_name: str
    label: str
    aliases: tuple[str, ...]
    chip: str | None = None
    is_chip: bool = False


GPUS = {
    "a100-sxm-40gb": Gpu("A100-SXM4-40GB", "NVIDIA A100 SXM4 40GB", ("a100-40gb", "a100-sxm4-40gb"), "A100"),
    "a100-sxm-80gb": Gpu(
        "A100-SXM4-80GB", "NVIDIA A100 SXM4 80GB", ("a100", "a100-80gb", "a100-sxm", "a100-sxm4-80gb"), "A100", True
    ),
    "a100-pcie-80gb": Gpu("A100-PCIe-80GB", "NVIDIA A100 PCIe 80GB", ("a100-pcie",), "A100"),
    "h100-sxm": Gpu(
        "H100-SXM5-80GB", "NVIDIA H100 SXM5 80GB", ("h100", "h100-80gb", "h100-sxm5", "h100-sxm5-80gb"), "H100", True
    ),
    "h100-pcie": Gpu("H100-PCIe-80GB", "NVIDIA H100 PCIe 80GB", ("h100-pcie-80gb",), "H100"),
    "h100-nvl": Gpu("H100-NVL-94GB", "NVIDIA H100 NVL 94GB", ("h100-nvl-94gb",), "H100"),
    "h200-sxm": Gpu("H200-SXM-141GB", "NVIDIA H200 SXM 141GB", ("h200", "h200-141gb", "h200-sxm-141gb"), "H200", True),
    "gh200": Gpu("GH200-96GB/144GB", "NVIDIA GH200 96GB", ("gh200-96gb",), "H100"),
    "b200-sxm": Gpu("B200-SXM-180GB", "NVIDIA B200 SXM 180GB", ("b200", "b200-180gb", "b200-sxm-180gb"), "B200", True),
    "b300-sxm": Gpu("B300-SXM-288GB", "NVIDIA B300 SXM 288GB", ("b300", "b300-288gb", "b300-sxm-288gb"), "B200"),
    "gb200": Gpu("GB200-NVL72 (per GPU)", "NVIDIA GB200 NVL72, one GPU", ("gb200-nvl72",), "B200"),
    "gb300": Gpu("GB300-NVL72 (per GPU)", "NVIDIA GB300 NVL72, one GPU", ("gb300-nvl72",), "B200"),
    "l40s": Gpu("L40S-48GB", "NVIDIA L40S 48GB", ("l40s-48gb",), "L40S", True),
    "l4": Gpu("L4-24GB", "NVIDIA L4 24GB", ("l4-24gb",)),
    "a10": Gpu("A10-24GB", "NVIDIA A10 24GB", ("a10-24gb",)),
    "a10g": Gpu("A10G-24GB (AWS g5)", "NVIDIA A10G 24GB", ("a10g-24gb",)),
    "a30": Gpu("A30-24GB", "NVIDIA A30 24GB", ("a30-24gb",), "A100"),
    "rtx-4090": Gpu("RTX-4090-24GB", "NVIDIA GeForce RTX 4090 24GB", ("rtx4090", "4090"), "RTX4090", True),
    "rtx-5090": Gpu("RTX-5090-32GB", "NVIDIA GeForce RTX 5090 32GB", ("rtx5090", "5090"), "RTXPRO6000"),
    "rtx-pro-6000": Gpu(
        "RTX-PRO-6000-Server-96GB",
        "NVIDIA RTX PRO 6000 Blackwell Server 96GB",
        ("rtxpro6000", "rtx-pro-6000-server", "rtx-pro-6000-96gb"),
        "RTXPRO6000",
        True,
    ),
    "mi300x": Gpu("MI300X-192GB", "AMD Instinct MI300X 192GB", ("mi300x-192gb",)),
    "mi325x": Gpu("MI325X-256GB", "AMD Instinct MI325X 256GB", ("mi325x-256gb",)),
    "mi355x": Gpu("MI355X-288GB", "AMD Instinct MI355X 288GB", ("mi355x-288gb",)),
}

USABLE_GIB = {  # what vLLM logs as CUDA's total, where a log says so
    "h100-sxm": (79.19, "CUDA total in vLLM start-up logs of H100 80GB"),
    "h100-pcie": (79.19, "CUDA total in vLLM start-up logs of H100 80GB"),
    "h200-sxm": (139.8, "CUDA total in vLLM start-up logs of H200"),
    "rtx-4090": (23.516, "25,250,627,584 bytes, recorded with LLMServingSim's run of Llama-3.1-8B on vLLM 0.19"),
    "rtx-pro-6000": (94.973, "101,976,440,832 bytes, recorded with LLMServingSim's runs on vLLM 0.28"),
}

# List prices; before the colon whose and of when. RunPod's are those that the page names spot: for the H100 SXM, 2.69 is what
# spheron.network/blog/runpod-h100-pricing-2026 gives as on demand in the secure cloud on 2026-05-22.
_RUNPOD = "RunPod, 2026-03-10: deploybase.ai/articles/runpod-gpu-pricing, column Spot/hr"
_AWS = "AWS, 2026: g5.xlarge on demand in us-east-1, factualminds.com/blog/amazon-ec2-on-demand-pricing-instance-families-2026"
_LAMBDA = "Lambda, 2026-05-07: techbytes.app/posts/serverless-gpu-pricing-matrix-modal-replicate-lambda-2026"
_TENSORWAVE = "TensorWave, 2026-05-18: cliffcenter.com/research/amd-inference-economics"
_SPHERON = "Spheron, 2026-03-17: half of the 9.08 for a superchip of two GPUs, spheron.network/blog/nvidia-h200-vs-b200-vs-gb200"
PRICES_USD_PER_HOUR = {  # who is not here has none: no dated list price was found
    "a10": (0.86, _LAMBDA),
    "a100-pcie-80gb": (1.19, _RUNPOD),
    "a100-sxm-40gb": (1.48, _LAMBDA),
    "a100-sxm-80gb": (1.39, _RUNPOD),
    "a10g": (1.006, _AWS),
    "b200-sxm": (5.98, _RUNPOD),
    "gb200": (4.54, _SPHERON),
    "h100-pcie": (1.99, _RUNPOD),
    "h100-sxm": (2.69, _RUNPOD),
    "h200-sxm": (3.59, _RUNPOD),
    "l4": (0.44, _RUNPOD),
    "l40s": (0.79, _RUNPOD),
    "mi300x": (1.50, _TENSORWAVE),
    "mi325x": (1.95, _TENSORWAVE),
    "rtx-4090": (0.34, _RUNPOD),
    "rtx-5090": (0.69, _RUNPOD),
    "rtx-pro-6000": (0.89, _RUNPOD),
}

# GB/s of the network a GPU has, and where that is from; what is not here has NETWORK_ELSEWHERE.
_NDR = "400 Gb/s a GPU: ConnectX-7, NVIDIA's DGX H100, H200 and B200 datasheets"
_XDR = "800 Gb/s a GPU: ConnectX-8, NVIDIA's DGX B300 and GB300 datasheets"
_HDR = "200 Gb/s a GPU: ConnectX-6, NVIDIA's DGX A100 datasheet"
_AMD = "assumed: 400 Gb/s a GPU, as AMD's reference racks of MI300X have them"
NETWORKS_GB_S = {
    **dict.fromkeys(("h100-sxm", "h200-sxm", "b200-sxm", "gh200", "gb200"), (50.0, _NDR)),
    **dict.fromkeys(("b300-sxm", "gb300"), (100.0, _XDR)),
    **dict.fromkeys(("a100-sxm-40gb", "a100-sxm-80gb"), (25.0, _HDR)),
    **dict.fromkeys(("mi300x", "mi325x", "mi355x"), (50.0, _AMD)),
}
NETWORK_ELSEWHERE = (3.125, "assumed: 25 Gb/s Ethernet a GPU, which cards in common servers share out")
GPUS_PER_NODE = {"gb200": 4, "gb300": 4, "gh200": 1}  # all others have HGX boards or servers of eight

FITTED_ON = {
    "A100": "AIConfigurator's kernel tables of vLLM 0.14.0 on A100",
    "RTX4090": "LLMServingSim's kernel profile of vLLM 0.19 on RTX 4090",
    **{
        chip: f"AIConfigurator's kernel tables of vLLM 0.24.0 on {chip}"
        for chip in ("H100", "H200", "L40S", "B200", "RTXPRO6000")
    },
}
ALSO_OF_CHIP = {"RTX4090": "L40S"}  # the same AD102 chip: gives what was not measured on the RTX 4090
NO_PEER_TO_PEER = {"RTX4090"}  # its all-reduce goes through host memory, so the sibling's does not apply

DENSE = ("compute_efficiency", "memory_efficiency", "launch_us")


def _dense(*values: float) -> dict[str, float]:
    return dict(zip(DENSE, values, strict=True))


GENERIC = {  # the row for an unseen GPU: leave-one-GPU-out fits; all-reduce rounded by eye
    "gemm bf16": _dense(0.79, 0.83, 4.0),
    "gemm fp8": {**_dense(0.58, 0.80, 6.0), "wave_penalty": 0.4},
    "decode attention": {**_dense(0.08, 0.86, 11.4), "per_wave_us": 1.6},
    "prefill attention": {**_dense(0.55, 0.38, 11.5), "wave_penalty": 0.35},
    "all-reduce": {"base_us": 5.0, "per_gpu_us": 0.2, "link_efficiency": 0.6},
}
GENERIC_SOURCE = "generic efficiencies of an unseen GPU: 7-12.5 % median error of GEMMs on GPUs left out of the fit"

FLASH_ATTENTION_2 = {"8.0", "8.6", "8.9", "12.0"}


class SpecSheet(str):
    """The catalogue row's source, written out once a file and referred to by `*sheet` afterwards."""

    __slots__ = ()


class Dumper(yaml.SafeDumper):
    """Writes `{value, source}` in one line and the spec sheet's source once."""

    def ignore_aliases(self, data: Any) -> bool:
        return not isinstance(data, SpecSheet)

    def generate_anchor(self, node: yaml.Node) -> str:
        del node
        return "sheet"

    def represent_dict(self, data: dict[str, Any]) -> yaml.Node:  # type: ignore[override]
        is_leaf = data.keys() == {"value", "source"} or all(isinstance(value, float) for value in data.values())
        return self.represent_mapping("tag:yaml.org,2002:map", data.items(), flow_style=is_leaf)


Dumper.add_representer(dict, Dumper.represent_dict)
Dumper.add_representer(list, lambda dumper, items: dumper.represent_sequence("tag:yaml.org,2002:seq", items, True))
Dumper.add_representer(SpecSheet, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text))


def main(shared: Path) -> None:
    """Writes one YAML for each GPU named above."""
    lines = (shared / "catalog/gpus.csv").read_text(encoding="utf-8").splitlines()
    rows = {row["name"]: row for row in csv.DictReader(lines)}
    params = json.loads(KERNEL_FITS.read_text(encoding="utf-8"))
    served = json.loads(SERVING_FITS.read_text(encoding="utf-8"))
    links = json.loads(LINK_FITS.read_text(encoding="utf-8"))
    for name, gpu in GPUS.items():
        profile = {**_facts(name, gpu, rows[gpu.catalogue_name]), "operators": {}}
        profile["operators"] = _operators(gpu, profile, params, served)
        _slow(name, profile["operators"])
        profile["operators"]["messages"] = _messages(name, gpu, links)
        text = yaml.dump(profile, Dumper=Dumper, sort_keys=False, width=1000, allow_unicode=True)
        (PROFILES / f"{name}.yaml").write_text(HEADER + text, encoding="utf-8")


def _facts(name: str, gpu: Gpu, row: dict[str, str]) -> dict[str, Any]:
    sheet = SpecSheet(row["source"])

    def sourced(value: float | str) -> dict[str, Any]:
        return {"value": value, "source": sheet}

    usable = USABLE_GIB.get(name)
    price = PRICES_USD_PER_HOUR.get(name)
    return {
        "name": name,
        "label": gpu.label,
        "aliases": list(gpu.aliases),
        "architecture": row["arch"],
        "compute_capability": row["compute_capability"],
        "confidence": sourced(row["confidence"]),
        "num_sms": sourced(int(row["sms_or_cus"])),
        "memory_label_gb": sourced(float(row["mem_label_gb"])),
        "memory_usable_gib": {"value": usable[0], "source": usable[1]} if usable else sourced(_usable_gib(row)),
        "memory_bandwidth_tb_s": sourced(float(row["mem_bw_tb_s"])),
        "peak_tflops": {dtype: sourced(peak) for dtype, peak in _peaks(row).items()},
        **{key: sourced(value) for key, value in _links(row).items()},
        **_network(name),
        "tdp_w": sourced(float(row["tdp_w"])),
        "price_usd_per_hour": {"value": price[0], "source": price[1]} if price else None,
        **({"note": row["notes"]} if row["notes"] else {}),
    }


def _usable_gib(row: dict[str, str]) -> float:
    return float(next(value for column, value in row.items() if column.startswith("mem_gib_usable_hint")))


def _peaks(row: dict[str, str]) -> dict[str, float]:
    columns = {
        "bf16": "bf16_dense_tflops",
        "fp8": "fp8_dense_tflops",
        "fp4": "fp4_dense_tflops",
        "int8": "int8_dense_tops",
    }
    return {dtype: float(row[column]) for dtype, column in columns.items() if row[column]}


def _links(row: dict[str, str]) -> dict[str, float]:
    pcie = {"pcie_gb_s": float(row["pcie_gb_s_per_dir"])}
    nvlink_gb_s = float(row["nvlink_gb_s_per_dir"])
    if nvlink_gb_s == 0:
        return pcie
    return {"link_gb_s": nvlink_gb_s, "num_linked_gpus": int(row["nvlink_domain_gpus"].split("-")[-1]), **pcie}


def _network(name: str) -> dict[str, Any]:
    gb_s, source = NETWORKS_GB_S.get(name, NETWORK_ELSEWHERE)
    num_gpus = GPUS_PER_NODE.get(name, 8)
    boards = "NVIDIA's datasheet" if name in GPUS_PER_NODE else "HGX boards and common servers"
    return {
        "gpus_per_node": {"value": num_gpus, "source": boards},
        "network_gb_s": {"value": gb_s, "source": source},
    }


def _messages(name: str, gpu: Gpu, links: dict[str, Any]) -> dict[str, Any]:
    """As measured on this GPU's own links, else on those of the nearest kind."""
    on_a100 = gpu.chip == "A100"
    network = "infiniband" if name in NETWORKS_GB_S else "ethernet"
    has_pcie_5 = name.startswith(("h", "b", "g", "mi", "rtx-5", "rtx-pro"))
    chosen = {
        "link": ("link_a100" if on_a100 else "link", name in {"h100-sxm", "a100-sxm-80gb"}),
        "pcie": ("pcie_5" if has_pcie_5 else "pcie", name in {"l40s", "rtx-pro-6000"}),
        "network": (network, name == "h100-sxm"),
    }
    return {
        link: {
            "basis": "fitted" if is_own else "derived",
            "source": links[key]["source"],
            "base_us": links[key]["base_us"],
            "efficiency": links[key]["efficiency"],
        }
        for link, (key, is_own) in chosen.items()
    }


class Fits:
    """Finds each operator's parameters for one GPU: its own, those of its chip, or the generic row."""

    def __init__(self, gpu: Gpu, params: dict[str, Any]) -> None:
        self._gpu = gpu
        self._params = params

    def block(self, operator: str, *, borrowed_for: str | None = None) -> dict[str, Any]:
        """Parameters of `operator` under their names in the profile, with basis and source."""
        chip = self._chip_with(operator)
        if chip is None:
            basis, source = "generic", GENERIC_SOURCE
            values = self._generic(operator)
        else:
            is_own = self._gpu.is_chip and chip == self._gpu.chip
            basis, source = ("fitted" if is_own else "derived"), self._source(chip, operator)
            values = self._params[chip][operator]
        if borrowed_for:
            basis, source = ("derived" if chip else "generic"), f"for want of {borrowed_for} fits; {source}"
        return {"basis": basis, "source": source, **_numbers(operator, values)}

    def block_or(self, operator: str, otherwise: str, wanted: str) -> dict[str, Any]:
        """`operator` where its chip has it, else what is nearest to it."""
        return self.block(operator) if self._chip_with(operator) else self.block(otherwise, borrowed_for=wanted)

    def riding(self, chip: str | None) -> tuple[dict[str, float], str]:
        """What decodes cost in the kernel of chunks, and the chip where that was measured: its own, or an RTX 4090."""
        source = chip if chip and "mixed attention" in self._params[chip] else "RTX4090"
        fit = self._params[source]["mixed attention"]
        return {key: value for key, value in fit.items() if not key.endswith("med_p90")}, source

    def _chip_with(self, operator: str) -> str | None:
        chip = self._gpu.chip
        for candidate in (chip, ALSO_OF_CHIP.get(chip or "")):
            sibling_fits = candidate == chip or not (operator == "all-reduce" and chip in NO_PEER_TO_PEER)
            if candidate and sibling_fits and operator in self._params[candidate]:
                return candidate
        return None

    def _source(self, chip: str, operator: str) -> str:
        fit = self._params[chip][operator]
        error = fit.get("holdout_med_p90") or fit.get("leave_one_tp_out_med_p90") or fit.get("insample_med_p90")
        if error is None:
            return f"effective bandwidth of norms and activations on {chip}, within 15-20 % median"
        kind = "in sample" if not ({"holdout_med_p90", "leave_one_tp_out_med_p90"} & fit.keys()) else "held out"
        return f"{FITTED_ON[chip]}; {kind}: median error {error[0]} %, P90 {error[1]} %"

    def _generic(self, operator: str) -> dict[str, float]:
        values = GENERIC.get(operator) or self._median(operator)
        if operator != "prefill attention":
            return values
        softmax_dims = self._median(operator)["softmax_dims"]
        share = math.hypot(COMMON_DIMS, softmax_dims) / COMMON_DIMS  # the generic rate is that of common heads
        efficiency = round(values["compute_efficiency"] * share, 3)
        return {**values, "compute_efficiency": efficiency, "softmax_dims": softmax_dims}

    def _median(self, operator: str) -> dict[str, float]:
        fitted = [fits[operator] for fits in self._params.values() if operator in fits]
        keys = [key for key in fitted[0] if not key.endswith("med_p90")]
        return {key: round(median(fit[key] for fit in fitted), 3) for key in keys}


def _numbers(operator: str, values: dict[str, Any]) -> dict[str, Any]:
    """The parameters without the errors of their fit."""
    block: dict[str, Any] = {key: value for key, value in values.items() if not key.endswith("med_p90")}
    if "by_bytes" in values:
        block["by_bytes"] = {int(n): {int(size): f for size, f in of.items()} for n, of in values["by_bytes"].items()}
    return block | ({"wave_penalty": 0.0} if operator == "gemm bf16" else {})


def _operators(gpu: Gpu, profile: dict[str, Any], params: dict[str, Any], served: dict[str, Any]) -> dict[str, Any]:
    fits = Fits(gpu, params)
    dtypes = list(profile["peak_tflops"])
    return {
        "gemm": _gemm(fits, dtypes),
        "decode_attention": fits.block("decode attention"),
        "decode_attention_fp8": fits.block_or("decode attention fp8", "decode attention", "fp8 KV"),
        "prefill_attention": _prefill_attention(fits, gpu, profile),
        "prefill_attention_fp8": fits.block_or("prefill attention fp8", "prefill attention", "fp8 KV"),
        "experts": {dtype: _experts(fits, dtype) for dtype in dtypes},
        "experts_weight_only": fits.block_or("experts int4", "experts bf16", "weights of 4 bits"),
        "all_reduce": fits.block("all-reduce"),
        "elementwise": _elementwise(fits, gpu, profile),
        "sampler": {"basis": "fitted" if gpu.chip == "H100" and gpu.is_chip else "derived", **served["sampler"]},
        "host": _host(served["host"], profile["name"]),
    }


def _gemm(fits: Fits, dtypes: list[str]) -> dict[str, Any]:
    own = {"bf16": "gemm bf16", "fp8": "gemm fp8", "fp4": "gemm nvfp4"}
    narrow = [dtype for dtype in dtypes if dtype != "bf16"]
    blocks = {dtype: fits.block_or(own.get(dtype, "gemm int8"), "gemm fp8", dtype) for dtype in narrow}
    return {"bf16": fits.block("gemm bf16"), **blocks}


def _slow(name: str, operators: dict[str, Any]) -> None:
    """What a board's power lets matrices and prompts' attention have of their rates, where that is known."""
    clock = json.loads(CLOCK_FITS.read_text(encoding="utf-8")).get(name)
    if clock is None:
        return
    alone = [*operators["gemm"].values(), *operators["experts"].values()]
    attention = (operators["prefill_attention"], operators["prefill_attention_fp8"])
    for block in (*alone, operators["experts_weight_only"], *attention):
        block["compute_efficiency"] = round(clock["share"] * block["compute_efficiency"], 3)
        block["source"] += f"; times {clock['share']}, {clock['source']}"


def _prefill_attention(fits: Fits, gpu: Gpu, profile: dict[str, Any]) -> dict[str, Any]:
    """FlashAttention 2, which runs decodes and chunks in one kernel, is what Hopper and data-centre Blackwell do not use."""
    block = fits.block("prefill attention")
    if profile["compute_capability"] not in FLASH_ATTENTION_2:
        return block
    riding, chip = fits.riding(gpu.chip)
    source = f"{block['source']}; decodes riding along: LLMServingSim's mixed calls on {chip}"
    return {**block, "source": source, **riding}


def _experts(fits: Fits, dtype: str) -> dict[str, Any]:
    if dtype == "bf16":
        return fits.block("experts bf16")
    if dtype == "fp8":
        return fits.block("experts fp8_block")
    return fits.block_or("experts nvfp4" if dtype == "fp4" else "experts int8", "experts fp8_block", dtype)


def _elementwise(fits: Fits, gpu: Gpu, profile: dict[str, Any]) -> dict[str, Any]:
    if gpu.chip:
        return fits.block("elementwise")
    stays_in_l2 = profile["architecture"] in {"Ada", "Ampere"} or profile["label"].startswith("NVIDIA GeForce")
    efficiency = 0.9 if stays_in_l2 else 0.5
    source = "as L40S among GDDR cards (0.9), as H100 among HBM ones (0.5)"
    return {"basis": "generic", "source": source, "memory_efficiency": efficiency, "launch_us": 2.3}


def _host(served: dict[str, Any], gpu: str) -> dict[str, Any]:
    launches = json.loads(LAUNCH_FITS.read_text(encoding="utf-8"))
    launched = launches.get(gpu, launches[OTHER_HOSTS])
    slower = (
        f"; the front end takes {launched['front_end']} times as long, as a launch does"
        if launched["front_end"] != 1
        else ""
    )
    return {
        "basis": "generic",
        "source": f"0.3 ms a step (0.1-1.0 seen) and 4 us a request against real vLLM steps; {served['source']}; "
        f"launches {launched['source']}{slower}",
        "step_us": 300.0,
        "request_us": 4.0,
        "exposed_us": served["exposed_us"],
        **{name: launched[name] for name in ("launch_us", "layer_us", "gap_us")},
        "front_end_us": round(launched["front_end"] * served["front_end_us"], 0),
        "front_end_request_us": round(launched["front_end"] * served["front_end_request_us"], 1),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
