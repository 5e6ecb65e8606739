"""How far a forecast can be trusted: levels by what was measured, bands by how far it was off."""

import pytest

from sim.measure.confidence import STARTING, Band, Evidence, Residual, confidence, known_evidence
from sim.measure.likeness import Regime, Traits
from sim.specs.operator_fits import Basis

CACHED = Regime(is_cached=True, prompt_tokens=550.0, context_tokens=670.0, batch=30.0)
H100 = Traits("h100-sxm", "llama", "bf16", 8e9, vllm_version="0.15", regime=CACHED)
BANDS = {
    "step": Band(0.04, 0.5),
    "ttft": Band(0.03, 1.0),
    "tail": Band(0.05, 2.0),
    "start": Band(0.4, 0.0),
    "blocks": Band(0.01, 0.0),
}
KERNELS: dict[Basis, float] = {"fitted": 0.0, "derived": 0.03, "generic": 0.2}
KNOWN = Evidence(tuple(Residual(H100, {"step": error}) for error in (-0.02, 0.01, 0.03)), BANDS, KERNELS, 15.0)


def test_validated_by_runs_like_it() -> None:
    """The bands are those of measured runs; time to first token has both its own and the steps'."""
    found = confidence(H100, KNOWN)
    assert (found.level, found.extrapolates, found.num_runs) == ("validated", (), 3)
    assert found.bands == (0.04, 0.03, 0.05, 0.05, 0.01)
    assert found.bands_percent == {"output_throughput": 4.1, "ttft": 5.1, "tpot": 4.1}
    assert str(found) == "validated on 3 measured runs like it: output_throughput +-4 %, ttft +-5 %, tpot +-4 %"


def test_bands_widen_by_each_thing_that_is_new_and_say_so() -> None:
    """Two of them: the steps' band by half each, the first token's by all of it."""
    found = confidence(H100._replace(gpu="l4", execution="eager"), KNOWN)
    assert (found.level, found.extrapolates, found.num_runs) == ("extrapolated", ("gpu", "execution"), 0)
    assert found.bands == pytest.approx((0.08, 0.09, 0.25, 0.25, 0.01))
    assert str(found).startswith("extrapolated (never measured: GPU l4, steps without CUDA graphs): ")


def test_a_known_version_that_was_not_measured_widens_the_band_only() -> None:
    """Its rules are known; those of one newer than any are not, and it is no validation."""
    other = confidence(H100._replace(vllm_version="0.33"), KNOWN)
    newer = confidence(H100._replace(vllm_version="0.99", is_newer_than_known=True), KNOWN)
    assert (other.level, other.num_runs) == ("validated", 3)
    assert other.bands.step == newer.bands.step == pytest.approx(0.06)
    assert "validated on 3 measured runs like it (never measured: vLLM 0.33): " in str(other)
    assert (newer.level, newer.extrapolates) == ("extrapolated", ("vllm_version",))
    assert "never measured: vLLM 0.99" in str(newer)


def test_facets_measured_apart_are_no_validation() -> None:
    """This GPU with another model, this model on another GPU."""
    other = Residual(H100._replace(gpu="b200-sxm", family="mixtral"), {"step": 0.09})
    known = KNOWN._replace(residuals=(*KNOWN.residuals, other))
    found = confidence(H100._replace(gpu="b200-sxm"), known)
    assert (found.level, found.extrapolates) == ("extrapolated", ("gpu",))
    assert found.reasons == ("not measured with the rest: GPU b200-sxm",)
    assert found.bands.step > confidence(H100, known).bands.step


def test_derived_figures_and_kernels_of_another_gpu_widen_the_band() -> None:
    """By what kernels were off by on a GPU left out of their fit; the line names them."""
    derived = confidence(H100._replace(derived=("num_sms", "operators.gemm", "pcie_gb_s", "tdp_w")), KNOWN)
    sibling, generic = (confidence(H100._replace(kernels=basis), KNOWN) for basis in ("derived", "generic"))
    assert KNOWN.bands["step"].base < sibling.bands.step < generic.bands.step == derived.bands.step
    assert (derived.level, derived.extrapolates) == ("extrapolated", ("derived",))
    assert derived.reasons == ("derived, not given: num_sms, operators.gemm, pcie_gb_s ...",)
    assert generic.reasons == ("kernels never timed on it",)


MIXTRAL = H100._replace(family="mixtral", has_experts=True)


@pytest.mark.parametrize(
    ("p1_arrival_s", "p5_arrival_s", "p95", "p99"),
    [
        (3.0, 14.0, 0.4, 0.4),
        (15.0, 80.0, 0.05, 0.4),
        (16.0, 90.0, 0.05, 0.05),
        (0.0, 0.0, 0.4, 0.4),
        (None, None, 0.05, 0.05),
    ],
)
def test_a_server_of_experts_starts(
    p1_arrival_s: float | None, p5_arrival_s: float | None, p95: float, p99: float
) -> None:
    """A P99 is as uncertain as a start where a hundredth of the requests come in its 15 s, a P95 where a twentieth does."""
    regime = CACHED._replace(p1_arrival_s=p1_arrival_s, p5_arrival_s=p5_arrival_s)
    known = KNOWN._replace(residuals=(Residual(MIXTRAL, {}),))
    found = confidence(MIXTRAL._replace(regime=regime), known)
    assert (found.bands.p95, found.bands.p99) == (p95, p99)
    assert (found.reasons == (STARTING,)) == (p99 == 0.4)
    assert found.level == "validated"
    dense = confidence(H100._replace(regime=regime), KNOWN)
    assert (dense.bands.p95, dense.bands.p99, dense.reasons) == (0.05, 0.05, ())


def test_before_a_load_is_known_no_start_is() -> None:
    """A deployment alone has the bands of a server that runs."""
    assert confidence(MIXTRAL._replace(regime=None), KNOWN).bands.p99 < 0.4


def test_the_shipped_evidence_covers_what_was_served() -> None:
    """Llama-3.1-8B on an H100 with cached prompts was measured many times; each step from there is wider and says why."""
    served = confidence(H100)
    assert served.level == "validated"
    assert served.num_runs >= 5
    assert served.bands_percent["tpot"] < 6
    uncached = CACHED._replace(is_cached=False, prompt_tokens=100_000.0, context_tokens=100_100.0)
    for new in (
        H100._replace(execution="eager"),
        H100._replace(kv_dtype="fp8"),
        H100._replace(regime=uncached),
        H100._replace(gpu="h100-sxm with figures of its own"),
        H100._replace(vllm_version="0.99", is_newer_than_known=True),
    ):
        found = confidence(new)
        assert found.level == "extrapolated"
        assert all(wide > narrow for wide, narrow in zip(found.bands[:2], served.bands[:2], strict=True))
        assert found.reasons


def test_the_shipped_start_is_seconds_long_and_far_slower() -> None:
    """As first stages of Mixtral were; every P99 of a run counts, whatever started."""
    known = known_evidence()
    assert known.start_s == 15
    assert known.bands["start"].base > 5 * known.bands["tail"].base > 0


def test_every_residual_says_what_was_run() -> None:
    """Each with what it put the engine through; far more than half are off by less than the band."""
    known = known_evidence()
    assert len(known.residuals) > 100
    steps = [abs(residual.errors["step"]) for residual in known.residuals]
    assert sum(step <= known.bands["step"].at(5) for step in steps) > 0.8 * len(steps)
    assert all(residual.traits.regime for residual in known.residuals)
