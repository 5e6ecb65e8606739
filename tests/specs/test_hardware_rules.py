"""Short hardware profiles: what a file must say, what follows from the nearest known GPU, and that it is marked."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from sim.errors import ConfigError, ProfileError
from sim.measure.confidence import confidence
from sim.measure.likeness import traits
from sim.measure.scales import SCALES, profile, scaled
from sim.specs.data import data_dir
from sim.specs.engine import EngineConfig
from sim.specs.hardware import HardwareProfile, known_gpus, load_gpu, profile_values, profile_yaml
from sim.specs.hardware_rules import FIGURES, OPERATORS
from sim.specs.models import load_model
from sim.specs.vllm import resolve_engine
from sim.units import GIB

DERIVED = (*FIGURES, *(f"operators.{name}" for name in OPERATORS))


def write(tmp_path: Path, **changes: Any) -> Path:
    """A profile of the least that can be said, with other keys added or, where None, left out."""
    least = {
        "name": "new",
        "memory_label_gb": 96,
        "memory_bandwidth_tb_s": 4.0,
        "peak_tflops": {"bf16": 800, "fp8": 1600},
    }
    path = tmp_path / "new.yaml"
    values = {key: value for key, value in (least | changes).items() if value is not None}
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def reload(tmp_path: Path, text: str) -> HardwareProfile:
    path = tmp_path / "again.yaml"
    path.write_text(text, encoding="utf-8")
    return load_gpu(path)


def test_all_that_is_missing_is_named_at_once(tmp_path: Path) -> None:
    """One error for four keys; a misspelt one is named beside what it stands in for."""
    path = tmp_path / "empty.yaml"
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(ProfileError) as caught:
        load_gpu(path)
    keys = "`name`, `memory_label_gb`, `memory_bandwidth_tb_s` and `peak_tflops`"
    assert str(caught.value) == f"{path}: {keys} are required but absent."
    with pytest.raises(
        ProfileError, match=r"`memory_label_gb` and `peak_tflops.bf16` are .* absent\. `memory_lable_gb` is not"
    ):
        load_gpu(write(tmp_path, memory_label_gb=None, memory_lable_gb=96, peak_tflops={"fp8": 1}))


def test_extremes_derive_or_are_one_sentence(tmp_path: Path) -> None:
    """What follows from a figure at the end of its range is a figure, or refused as any other."""
    for peak in (1e-15, 1e15):
        assert load_gpu(write(tmp_path, peak_tflops={"bf16": peak})).num_sms >= 1
    with pytest.raises(ProfileError, match=r"`memory_usable_gib\.value` must be from 1e-15"):
        load_gpu(write(tmp_path, memory_label_gb=1e-15))
    with pytest.raises(ProfileError, match=r"`memory_label_gb\.value` should be less than or equal to 100000, got"):
        load_gpu(write(tmp_path, memory_label_gb=1e6))


def test_figures_follow_from_the_nearest_gpu_of_its_kind(tmp_path: Path) -> None:
    """A Hopper like the H100 NVL: units by the ratio of peaks, 93.1 of 94 GB usable, PCIe as all Hoppers have."""
    gpu = load_gpu(write(tmp_path, compute_capability="9.0", memory_label_gb=94, memory_bandwidth_tb_s=3.9))
    nvl = load_gpu("h100-nvl")
    assert (gpu.architecture, gpu.label) == ("Hopper", "new")
    assert gpu.num_sms == round(132 * 800 / 835.5)
    assert gpu.memory_bytes / GIB == pytest.approx(93.1)
    assert (gpu.pcie_bytes_per_s, gpu.tdp_w, gpu.link_bytes_per_s, gpu.num_linked_gpus) == (64e9, 400, 64e9, 1)
    assert gpu.operators.gemm["bf16"] == nvl.operators.gemm["bf16"]
    assert gpu.operators.gemm["bf16"].basis == "derived"
    assert gpu.derived == DERIVED


def test_a_short_profile_may_lie_among_those_that_are_built_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is derived from the others, and none from it."""
    shutil.copytree(data_dir("hardware_profiles"), tmp_path / "built_in")
    path = write(tmp_path / "built_in", compute_capability="9.0")
    expected = load_gpu(path)
    monkeypatch.setattr("sim.specs.hardware.data_dir", tmp_path.joinpath)
    path.parent.rename(tmp_path / "hardware_profiles")
    assert load_gpu("new") == expected
    assert expected in known_gpus()


def test_what_is_given_stays(tmp_path: Path) -> None:
    """Figures and whole blocks of operators; only the rest is named as derived."""
    host = profile_values("h100")["operators"]["host"] | {"step_us": 123.0}
    gpu = load_gpu(write(tmp_path, num_sms=100, tdp_w={"value": 1.0, "source": "x"}, operators={"host": host}))
    assert (gpu.num_sms, gpu.tdp_w) == (100, 1.0)
    assert gpu.operators.host.step_s == pytest.approx(123e-6)
    assert gpu.derived == tuple(key for key in DERIVED if key not in {"num_sms", "tdp_w", "operators.host"})


def test_a_gpu_of_no_known_kind_gets_generic_efficiencies(tmp_path: Path) -> None:
    """Whatever it is nearest to; a dtype that the nearest lacks comes from the nearest that has it."""
    gpu = load_gpu(
        write(tmp_path, architecture="Rubin", compute_capability="11.0", peak_tflops={"bf16": 800, "fp4": 3200})
    )
    assert (gpu.architecture, gpu.compute_capability) == ("Rubin", "11.0")
    assert {fit.basis for fit in gpu.operators.gemm.values()} == {"generic"}
    assert gpu.operators.decode_attention.basis == "generic"
    assert set(gpu.operators.gemm) == set(gpu.operators.experts) == {"bf16", "fp4"}
    fp4 = [known.operators.gemm["fp4"] for known in known_gpus() if "fp4" in known.peak_flops]
    assert gpu.operators.gemm["fp4"] in [replace(fit, basis="generic") for fit in fp4]


@pytest.mark.parametrize("name", ["h100-sxm", "a100-sxm-80gb", "b200-sxm", "l40s", "mi300x"])
def test_a_short_profile_of_a_known_gpu_is_that_gpu(tmp_path: Path, name: str) -> None:
    """From its sheet alone each measured GPU gets its own efficiencies back, marked as derived."""
    own = profile_values(name)
    keys = ("name", "compute_capability", "memory_label_gb", "memory_bandwidth_tb_s", "peak_tflops", "num_sms")
    gpu, known = load_gpu(write(tmp_path, **{key: own[key] for key in keys})), load_gpu(name)
    assert gpu.memory_bytes == pytest.approx(known.memory_bytes, rel=1e-4)
    for operator in ("decode_attention", "prefill_attention", "all_reduce", "elementwise"):
        assert replace(getattr(gpu.operators, operator), basis="") == replace(
            getattr(known.operators, operator), basis=""
        )
    assert gpu.derived


def test_a_derived_profile_is_trusted_less(tmp_path: Path) -> None:
    """Never validated, and with a wider band than the GPU that it borrows from."""
    model = load_model("Llama-3.1-8B")
    short, h100 = load_gpu(write(tmp_path, compute_capability="9.0")), load_gpu("h100")
    found = [confidence(traits(model, gpu, resolve_engine(EngineConfig(), model, gpu))) for gpu in (short, h100)]
    assert found[0].level == "extrapolated"
    assert found[0].bands.step > found[1].bands.step


def test_every_known_profile_prints_a_file_that_loads_equal(tmp_path: Path) -> None:
    """Word by word where it is complete."""
    for gpu in known_gpus():
        assert reload(tmp_path, profile_yaml(gpu.name)) == gpu
        assert gpu.derived == ()


def test_a_short_profile_prints_a_complete_one_that_loads_equal(tmp_path: Path) -> None:
    """What was derived stays marked, each figure with its rule."""
    path = write(tmp_path, price_usd_per_hour=2.5, architecture="Hopper")
    text = profile_yaml(path)
    assert reload(tmp_path, text) == load_gpu(path)
    assert yaml.safe_load(text)["derived"] == list(DERIVED)
    assert "by rule: the lowest of known GPUs of architecture Hopper" in text
    assert reload(tmp_path, profile_yaml(tmp_path / "again.yaml")) == load_gpu(path)


def test_a_short_profile_can_be_calibrated(tmp_path: Path) -> None:
    """Factors scale what was derived as they scale what was fitted."""
    path = write(tmp_path)
    half = profile(scaled(profile_values(path), dict.fromkeys(SCALES, 0.5)))
    whole = load_gpu(path)
    assert half.operators.host.step_s == pytest.approx(whole.operators.host.step_s / 2)
    assert half.derived == whole.derived


def test_prices_have_a_source_and_can_be_set(tmp_path: Path) -> None:
    """Every price says whose and of when; a GPU without one can be given one."""
    for gpu in known_gpus():
        assert (gpu.price_usd_per_hour is None) == (gpu.price_source is None)
        assert gpu.price_source is None or ", 2026" in gpu.price_source.split(":")[0]
    priced = HardwareProfile.load(write(tmp_path)).at_price(1.5)
    assert (priced.price_usd_per_hour, priced.price_source) == (1.5, "--price")
    for nonsense in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="--price must be a positive number of USD per GPU hour"):
            priced.at_price(nonsense)


def test_a_price_changes_no_forecast() -> None:
    """A GPU that costs something else is as well known as before."""
    model, h100 = load_model("Llama-3.1-8B"), load_gpu("h100")
    found = [
        confidence(traits(model, gpu, resolve_engine(EngineConfig(), model, gpu))) for gpu in (h100, h100.at_price(9.0))
    ]
    assert found[0] == found[1]
    assert found[0].level == "validated"
