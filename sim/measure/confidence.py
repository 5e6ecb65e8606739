"""How far a forecast can be trusted, from the errors on measured runs like it.

`residuals.json` holds the errors of every validated run with what was run, and the bands fitted to them;
benchmarks/fit_bands.py writes it.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from math import expm1, hypot
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sim.measure.likeness import SOFT, Facet, Novelty, Regime, Traits, novelty
from sim.specs.operator_fits import Basis

Level = Literal["validated", "extrapolated"]
STARTING = "its slowest requests may meet kernels of experts that are not compiled yet"
KERNEL_WORDS: Mapping[Basis, str] = {
    "derived": "kernels timed on a sibling only",
    "generic": "kernels never timed on it",
}
FEW = 3  # longest list of names that is given in full


class Band(NamedTuple):
    """The width of a band near measured runs, as the logarithm of a factor, and the share by which each novelty widens it."""

    base: float
    each: float

    def at(self, degree: float) -> float:
        return self.base * (1 + self.each * degree)


class Bands(NamedTuple):
    """Half the width of 90 % bands, as logarithms of factors: of step times, of the time to first token beyond what step
    times explain, of the slowest requests beyond that (upwards alone), and of the number of KV blocks.
    """

    step: float
    ttft: float
    p95: float
    p99: float
    blocks: float


class Residual(NamedTuple):
    """A validated run: its description and its signed errors, as logarithms of factors, by the band that they are fitted to."""

    traits: Traits
    errors: Mapping[str, float]


class Evidence(NamedTuple):
    """Validated runs, the band of each error that was fitted to them, and what kernels from elsewhere add to that of steps.

    A server of experts starts for `start_s`: so long after the first arrival requests have the band `start`, not `tail`.
    """

    residuals: tuple[Residual, ...]
    bands: Mapping[str, Band]
    kernels: Mapping[Basis, float]
    start_s: float


class Confidence(NamedTuple):
    """`validated` if similar runs were measured; `extrapolates` names what was never measured, `reasons` says it in words.

    `bands_percent` are +-% of each metric where no queue forms; `bands` are what intervals are made with.
    """

    level: Level
    extrapolates: tuple[str, ...]
    reasons: tuple[str, ...]
    num_runs: int
    bands: Bands

    @property
    def bands_percent(self) -> dict[str, float]:
        step, ttft = self.bands.step, hypot(self.bands.step, self.bands.ttft)
        widths = {"output_throughput": step, "ttft": ttft, "tpot": step}
        return {name: round(100 * expm1(width), 1) for name, width in widths.items()}

    def __str__(self) -> str:
        bands = ", ".join(f"{name} +-{band:.0f} %" for name, band in self.bands_percent.items())
        reasons = f" ({'; '.join(self.reasons)})" if self.reasons else ""
        if self.level == "validated":
            return f"validated on {self.num_runs} measured runs like it{reasons}: {bands}"
        return f"extrapolated{reasons}: {bands}"

    def to_json(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "extrapolates": list(self.extrapolates),
            "reasons": list(self.reasons),
            "num_runs": self.num_runs,
            "bands_percent": self.bands_percent,
            "text": str(self),
        }


@cache
def known_evidence() -> Evidence:
    """The one that comes with Servecast."""
    return evidence(json.loads(Path(__file__).with_name("residuals.json").read_text(encoding="utf-8")))


def evidence(file: Mapping[str, Any]) -> Evidence:
    """The one in a file such as `residuals.json`."""
    residuals = tuple(Residual(_traits(row["traits"]), row["errors"]) for row in file["runs"])
    bands = {name: Band(fit["base"], fit["each"]) for name, fit in file["bands"].items()}
    return Evidence(residuals, bands, file["kernels"], file["start_s"])


def _traits(row: Mapping[str, Any]) -> Traits:
    return Traits(**{**row, "regime": Regime(**row["regime"])})


def confidence(of: Traits, known: Evidence | None = None) -> Confidence:
    """The confidence in a forecast: each property that no measured run shares widens its bands and is named."""
    known = known or known_evidence()
    new = novelty(of, [residual.traits for residual in known.residuals])
    bands = {name: band.at(new.degree) for name, band in known.bands.items()}
    kernels: Basis = "generic" if of.derived else of.kernels
    p95, p99 = (bands["start" if starts else "tail"] for starts in _starts(of, known.start_s))
    step = hypot(bands["step"], known.kernels[kernels])
    hard = [facet for facet in (*new.never, *new.apart) if facet.name != SOFT or of.is_newer_than_known]
    level: Level = "extrapolated" if hard or of.derived else "validated"
    names = tuple(facet.name for facet in hard) + (("derived",) if of.derived else ())
    like = new.num_like or (_num_like(of, known.residuals) if level == "validated" else 0)
    reasons = (*_reasons(of, new), *([STARTING] if any(_starts(of, known.start_s)) else []))
    return Confidence(level, names, reasons, like, Bands(step, bands["ttft"], p95, p99, bands["blocks"]))


def _starts(of: Traits, start_s: float) -> tuple[bool, bool]:
    """Whether as many requests as lie above P95, and above P99, may come while the server starts."""
    arrived_s = (of.regime.p5_arrival_s, of.regime.p1_arrival_s) if of.regime else (None, None)
    return meets_start(of, arrived_s[0], start_s), meets_start(of, arrived_s[1], start_s)


def meets_start(of: Traits, arrived_s: float | None, start_s: float) -> bool:
    """Whether requests that had arrived after so many seconds may be slow because the server, one of experts, had just started.

    vLLM compiles the Triton kernels of experts when a batch first needs them (vllm-project/vllm #55268, #56580), and
    whatever runs meanwhile waits.
    """
    return of.has_experts and arrived_s is not None and arrived_s <= start_s


def _num_like(of: Traits, residuals: Sequence[Residual]) -> int:
    """Runs that are similar in everything but the version."""
    return novelty(of._replace(vllm_version=None), [residual.traits for residual in residuals]).num_like


def _reasons(of: Traits, new: Novelty) -> list[str]:
    said = {"never measured": new.never, "not measured with the rest": new.apart}
    reasons = [f"{what}: {_listed(of, facets)}" for what, facets in said.items() if facets]
    if of.derived:
        reasons.append(f"derived, not given: {', '.join(of.derived[:FEW])}{' ...' if len(of.derived) > FEW else ''}")
    return reasons + ([KERNEL_WORDS[of.kernels]] if of.kernels in KERNEL_WORDS else [])


def _listed(of: Traits, facets: Sequence[Facet]) -> str:
    return ", ".join(facet.words(of) for facet in facets)
