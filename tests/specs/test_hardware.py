"""Hardware profiles: what a YAML becomes, what is refused and how, and that the bundled ones say what their sources say."""

import csv
import json
from pathlib import Path

import pytest
import yaml

from benchmarks import write_profiles
from sim.errors import ProfileError
from sim.specs.data import data_dir
from sim.specs.hardware import known_gpus, load_gpu
from sim.units import GIB
from tests.shared import SHARED, needs_shared

NAMES = (
    "a10",
    "a100-pcie-80gb",
    "a100-sxm-40gb",
    "a100-sxm-80gb",
    "a10g",
    "a30",
    "b200-sxm",
    "b300-sxm",
    "gb200",
    "gb300",
    "gh200",
    "h100-nvl",
    "h100-pcie",
    "h100-sxm",
    "h200-sxm",
    "l4",
    "l40s",
    "mi300x",
    "mi325x",
    "mi355x",
    "rtx-4090",
    "rtx-5090",
    "rtx-pro-6000",
)


def write(tmp_path: Path, **changes: object) -> Path:
    """The H100's profile with some top-level keys replaced, or removed where None."""
    content = yaml.safe_load((data_dir("hardware_profiles") / "h100-sxm.yaml").read_text(encoding="utf-8"))
    content = {key: value for key, value in {**content, **changes}.items() if value is not None}
    path = tmp_path / "gpu.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ProfileError) as caught:
        load_gpu(path)
    return str(caught.value)


def test_every_gpu_of_the_catalogue_has_a_profile() -> None:
    """The 23 bundled GPUs and the CPU, each under the name of its file."""
    assert [gpu.name for gpu in known_gpus()] == sorted([*NAMES, "cpu"])


def test_h100_in_si_units() -> None:
    """Spec-sheet units are converted once, at load."""
    gpu = load_gpu("h100-sxm")
    assert gpu.memory_bytes == int(79.19 * GIB)
    assert gpu.memory_bandwidth_bytes_per_s == pytest.approx(3.35e12)
    assert gpu.peak_flops["bf16"] == pytest.approx(989.4e12)
    assert gpu.peak_flops["fp8"] == pytest.approx(1978.9e12)
    assert (gpu.num_sms, gpu.compute_capability, gpu.num_linked_gpus) == (132, "9.0", 8)
    assert gpu.link_bytes_per_s == pytest.approx(450e9)
    assert gpu.operators.gemm["bf16"].launch_s == pytest.approx(3.6e-6, rel=0.1)
    assert gpu.operators.decode_attention.per_wave_s == pytest.approx(2.0e-6, rel=0.1)


@pytest.mark.parametrize(
    ("name", "gib"), [("h100-sxm", 79.19), ("h200-sxm", 139.8), ("a100-sxm-80gb", 79.25), ("l40s", 44.99)]
)
def test_memory_is_what_cuda_reports(name: str, gib: float) -> None:
    """Usable memory is CUDA's total, below the label on the box."""
    gpu = load_gpu(name)
    assert gpu.memory_bytes / GIB == pytest.approx(gib, abs=1e-6)
    assert gpu.memory_bytes < gpu.memory_label_bytes * 1.074


@pytest.mark.parametrize("alias", ["H100", "h100-80GB", "H100-SXM", "h100-sxm5-80gb"])
def test_aliases_in_any_case(alias: str) -> None:
    """A GPU is found by its usual names, however they are written."""
    assert load_gpu(alias).name == "h100-sxm"


def test_no_alias_names_two_gpus() -> None:
    """Names and aliases are unique over all profiles."""
    names = [name.lower() for gpu in known_gpus() for name in (gpu.name, *gpu.aliases)]
    assert len(names) == len(set(names))


def test_beyond_its_domain_a_link_is_pcie() -> None:
    """Two bridged H100 PCIe talk over NVLink, four over PCIe; an L40S never has more than PCIe."""
    bridged, l40s = load_gpu("h100-pcie"), load_gpu("l40s")
    assert [bridged.all_reduce_bytes_per_s(n) for n in (2, 4)] == [300e9, 64e9]
    assert l40s.all_reduce_bytes_per_s(2) == l40s.link_bytes_per_s == 32e9


def test_basis_tells_fitted_from_borrowed_from_generic() -> None:
    """An H100 SXM was measured, an H100 PCIe borrows its efficiencies, an L4 takes the generic row."""
    bases = [load_gpu(name).operators.gemm["bf16"].basis for name in ("h100-sxm", "h100-pcie", "l4")]
    assert bases == ["fitted", "derived", "generic"]
    generic = load_gpu("l4").operators
    assert (generic.gemm["bf16"].compute_efficiency, generic.gemm["bf16"].memory_efficiency) == (0.79, 0.83)
    assert generic.prefill_attention.wave_penalty == 0.35


def test_a_gpu_without_fp8_has_no_fp8_efficiency() -> None:
    """Peaks and efficiencies are given for the same dtypes."""
    assert "fp8" not in load_gpu("a100").operators.gemm
    for gpu in known_gpus():
        assert gpu.operators.gemm.keys() == gpu.operators.experts.keys() == gpu.peak_flops.keys()


def test_unknown_gpu_suggests_its_neighbours() -> None:
    """A misspelt name ends with the names it may have meant."""
    with pytest.raises(ProfileError, match=r"GPU `h100-sxn` .* Did you mean h100-sxm"):
        load_gpu("h100-sxn")


def test_a_name_like_nothing_lists_all() -> None:
    """Where no name is near, all are listed."""
    with pytest.raises(ProfileError, match=r"Known: a10, .*rtx-pro-6000\."):
        load_gpu("zzzzz")


def test_a_copy_of_a_profile_loads(tmp_path: Path) -> None:
    """A path to a YAML is as good as a name."""
    assert load_gpu(write(tmp_path)) == load_gpu("h100-sxm")


def test_unknown_key_is_an_error(tmp_path: Path) -> None:
    """A misspelt key names its file and what was probably meant."""
    message = refusal(write(tmp_path, tpd_w={"value": 700.0, "source": "x"}))
    assert message.startswith(f"{tmp_path / 'gpu.yaml'}: `tpd_w` is not a known key. Did you mean tdp_w")


def test_missing_key_is_an_error(tmp_path: Path) -> None:
    """What a profile must say is named."""
    assert refusal(write(tmp_path, name=None)).endswith("gpu.yaml: `name` is required but absent.")


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (-1.0, "should be greater than 0, got -1.0."),
        (float("nan"), "should be a finite number, got nan."),
        ("3.35", "should be a valid number, got '3.35'."),
    ],
)
def test_a_number_out_of_range_is_an_error(tmp_path: Path, value: object, rule: str) -> None:
    """Field, rule and what was got, in one sentence."""
    message = refusal(write(tmp_path, memory_bandwidth_tb_s={"value": value, "source": "x"}))
    assert message.endswith(f"`memory_bandwidth_tb_s.value` {rule}")


def test_a_number_without_a_source_is_an_error(tmp_path: Path) -> None:
    """Each number stands beside its source."""
    message = refusal(write(tmp_path, tdp_w={"value": 700.0}))
    assert message.endswith("`tdp_w.source` is required but absent.")


def test_a_peak_without_an_efficiency_is_an_error(tmp_path: Path) -> None:
    """A dtype that can be multiplied in needs a fitted or borrowed efficiency."""
    peak = {dtype: {"value": 1.0, "source": "x"} for dtype in ("bf16", "fp8", "int8", "fp4")}
    assert "`operators.gemm` for exactly the dtypes of `peak_tflops`" in refusal(write(tmp_path, peak_tflops=peak))


def test_a_link_needs_a_number_of_gpus(tmp_path: Path) -> None:
    """A link's bandwidth means nothing without how many GPUs it joins."""
    assert "`link_gb_s` and `num_linked_gpus` together" in refusal(write(tmp_path, num_linked_gpus=None))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a: [1\n", "is not valid YAML"),
        (b"\xff\xfe\x00", "must be a YAML file, got binary content"),
        (b"name: x\nname: y\n", "a key is given twice"),
        (b"", "should be"),
    ],
)
def test_broken_files_are_one_sentence(tmp_path: Path, content: bytes, reason: str) -> None:
    """What cannot be read is refused with the file's name, without a traceback."""
    path = tmp_path / "broken.yaml"
    path.write_bytes(content)
    message = refusal(path)
    assert message.startswith(f"{path}: ")
    assert reason in message
    assert "\n" not in message


def test_missing_file_is_one_sentence(tmp_path: Path) -> None:
    """A path to nothing says so."""
    assert refusal(tmp_path / "none.yaml").endswith("none.yaml: cannot be read (No such file or directory).")


def test_fitted_numbers_are_those_of_the_fits() -> None:
    """No fitted number was typed: each profile of a measured GPU equals what fit_kernels.py, fit_clocks.py, fit_launches.py and fit_serving.py wrote."""
    kernels, clocks, launches, served = (
        json.loads(path.read_text(encoding="utf-8"))
        for path in (
            write_profiles.KERNEL_FITS,
            write_profiles.CLOCK_FITS,
            write_profiles.LAUNCH_FITS,
            write_profiles.SERVING_FITS,
        )
    )
    for name, gpu in write_profiles.GPUS.items():
        if gpu.is_chip and gpu.chip:
            fits, operators = kernels[gpu.chip], load_gpu(name).operators
            gemm, decode = operators.gemm["bf16"], operators.decode_attention
            compute, memory = (fits["gemm bf16"][key] for key in ("compute_efficiency", "memory_efficiency"))
            share = clocks[name]["share"] if name in clocks else 1
            assert [gemm.compute_efficiency, gemm.memory_efficiency] == [round(share * compute, 3), memory]
            assert decode.per_wave_s == pytest.approx(fits["decode attention"]["per_wave_us"] * 1e-6)
            assert operators.sampler.sort_bytes_per_logit == served["sampler"]["sort_bytes_per_logit"]
            hosts = launches.get(name, {"front_end": 1.0})
            front_end_us = round(hosts["front_end"] * served["host"]["front_end_us"])
            assert operators.host.front_end_s == pytest.approx(front_end_us * 1e-6)


@needs_shared
def test_peaks_are_those_that_efficiencies_were_fitted_with() -> None:
    """Peak and efficiency belong together; rounding of the spec sheet may differ from the tables'."""
    params = json.loads((SHARED / "steptime/params.json").read_text(encoding="utf-8"))
    for name, gpu in write_profiles.GPUS.items():
        if gpu.is_chip and gpu.chip:
            profile, fits = load_gpu(name), params[gpu.chip]
            assert profile.peak_flops["bf16"] == pytest.approx(fits["peak_bf16_TFLOPS"] * 1e12, rel=1e-3)
            assert profile.memory_bandwidth_bytes_per_s == pytest.approx(fits["hbm_GBs"] * 1e9, rel=1e-3)


@needs_shared
def test_profiles_are_what_the_script_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The YAMLs in the repository are the script's output, byte for byte, one for each row of the catalogue."""
    monkeypatch.setattr(write_profiles, "PROFILES", tmp_path)
    write_profiles.main(SHARED)
    with (SHARED / "catalog/gpus.csv").open(encoding="utf-8", newline="") as rows:
        assert len(list(csv.DictReader(rows))) == len(list(tmp_path.iterdir()))
    for written in tmp_path.iterdir():
        assert written.read_bytes() == (data_dir("hardware_profiles") / written.name).read_bytes()
