"""How far a forecast can be trusted: levels by what was measured, bands by how far it was off."""

import pytest

from sim.measure.confidence import Residual, Traits, confidence, known_residuals, tied

H100 = Traits("h100-sxm", "llama", "bf16", 8e9)
SMALL = [Residual(H100, {"tpot_mean": error, "ttft_mean": 2 * error}) for error in (-2.0, 1.0, 3.0)]


def test_validated_by_runs_like_it() -> None:
    """The band is the 90th percentile of 1, 2 and 3 %: 2.8 %; TTFT's is twice as wide."""
    found = confidence(H100, SMALL)
    assert (found.level, found.extrapolates, found.num_runs) == ("validated", (), 3)
    assert found.bands == pytest.approx({"output_throughput": 2.8, "ttft": 5.6, "tpot": 2.8})


@pytest.mark.parametrize(
    ("of", "missing"),
    [
        (H100._replace(gpu="l4"), ("gpu",)),
        (H100._replace(family="qwen3", dtype="fp8"), ("family", "dtype")),
        (H100._replace(active_parameters_per_gpu=20e9), ("size",)),
        (H100._replace(active_parameters_per_gpu=15e9), ()),
    ],
)
def test_what_was_never_measured_is_named(of: Traits, missing: tuple[str, ...]) -> None:
    """GPU, family, dtype, and a size beyond twice or half of what was."""
    found = confidence(of, SMALL)
    assert found.extrapolates == missing
    assert found.level == ("extrapolated" if missing else "validated")


def test_facets_measured_apart_are_no_validation() -> None:
    """This GPU with another model, this model on another GPU."""
    other = [Residual(Traits("b200-sxm", "mixtral", "bf16", 8e9), {"tpot_mean": 9.0, "ttft_mean": 9.0})]
    found = confidence(H100._replace(gpu="b200-sxm"), [*SMALL, *other])
    assert (found.level, found.extrapolates) == ("extrapolated", ("this combination",))
    assert found.bands["tpot"] > confidence(H100, [*SMALL, *other]).bands["tpot"]


def test_bands_widen_with_what_is_new() -> None:
    """A GPU never measured, a family never measured on top of it, and kernels that are guessed as well."""
    known, gpu = known_residuals(), H100._replace(gpu="l4")
    family, guessed = gpu._replace(family="gemma3"), gpu._replace(family="gemma3", kernels="generic")
    bands = [confidence(of, known).bands["tpot"] for of in (H100, gpu, family, guessed)]
    assert bands == sorted(bands)
    assert bands[-1] > 12.5


def test_the_shipped_residuals_cover_what_was_served() -> None:
    """Llama-3.1-8B on an H100 was measured many times, within 10 % in time per token."""
    found = confidence(H100)
    assert found.level == "validated"
    assert found.num_runs > 5
    assert found.bands["tpot"] < 10
    assert "validated on" in str(found)


def test_ties() -> None:
    """Within 5 % of each other; 100 and 106 are told apart."""
    assert tied(100, 104, 5)
    assert not tied(100, 106, 5)
    assert tied(104, 100, 5) == tied(100, 104, 5)
