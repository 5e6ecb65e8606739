"""Fits a few named factors of a hardware profile to measured runs, and says whether that helps on runs it did not see."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sim.engine.records import Floats
from sim.errors import RunsError
from sim.measure.runs import Run
from sim.measure.scales import SCALES, Values, profile, scaled, write_profile
from sim.measure.validate import Comparison, Progress, validate
from sim.specs.hardware import HardwareProfile, load_gpu, profile_values

METRICS = ("tpot_mean", "ttft_mean", "output_throughput")
MOST_PARTS = 3
MOST_STEPS = 12
STEP = 0.05  # of a factor's logarithm, for slopes
LARGEST_MOVE = 1.0  # of a factor's logarithm at once: e-fold
PRIOR = 0.02  # how much a factor's logarithm of 1 weighs beside a log error of 1: a factor that no run determines stays near 1
GOOD_ENOUGH = 1e-4
Errors = dict[str, float]


class Beside(NamedTuple):
    """A figure of a run as it was measured, and as the base and the fitted profile predict it."""

    measured: float
    before: float
    fitted: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Factors fitted to all runs; MAPE in % by metric for the base and the fit, on runs fitted to and on runs held out.

    Held-out errors come from fits that did not see the run: each part of the runs is left out once. `compared` has each
    run's figures.
    """

    base: str
    runs: tuple[str, ...]
    scales: Mapping[str, float]
    errors: Mapping[str, Errors]
    verdict: str
    values: Values
    compared: Mapping[str, Mapping[str, Beside]]

    def write(self, path: str | Path) -> None:
        """The calibrated profile, with what it was fitted on. Raises ConfigError if it cannot be written."""
        write_profile(Path(path), self.values | {"calibration": self.to_json()})

    def to_json(self) -> dict[str, Any]:
        return {
            "base": self.base,
            "runs": list(self.runs),
            "scales": dict(self.scales),
            "errors": {part: dict(errors) for part, errors in self.errors.items()},
            "verdict": self.verdict,
        }


def calibrate(runs: Sequence[Run], gpu: str | Path, *, progress: Progress | None = None) -> Calibration:
    """Fit the profile of `gpu` to those of the runs that were measured on it.

    `progress` is called with (done, all) fits. Raises RunsError if there is none, or one cannot be replayed.
    """
    name, values = load_gpu(gpu).name, profile_values(gpu)
    own = on_gpu(runs, name)
    parts = [own[start :: min(MOST_PARTS, len(own))] for start in range(min(MOST_PARTS, len(own)))]
    base = _compared(own, values, dict.fromkeys(SCALES, 1.0))
    before = _signed(base)
    after_unseen: dict[str, Errors] = {}
    for done, part in enumerate(parts if len(parts) > 1 else []):
        unseen = {run.id for run in part}
        fitted = fit([run for run in own if run.id not in unseen], values)
        after_unseen |= _errors(part, values, fitted)
        if progress:
            progress(done + 1, len(parts) + 1)
    scales = fit(own, values)
    fit_to_all = _compared(own, values, scales)
    after = _signed(fit_to_all)
    if progress:
        progress(1, 1)
    errors = {"before": _mape(before), "fitted": _mape(after), "held_out": _mape(after_unseen)}
    rounded = {scale: round(factor, 4) for scale, factor in scales.items()}
    verdict = _verdict(before, after_unseen)
    return Calibration(
        base=name,
        runs=tuple(run.id for run in own),
        scales=rounded,
        errors=errors,
        verdict=verdict,
        values=scaled(values, scales),
        compared={run: _beside(base[run], fit_to_all[run]) for run in base},
    )


def fit(runs: Sequence[Run], values: Values) -> dict[str, float]:
    """The factors with the least squares of log errors, by damped Gauss-Newton steps from 1."""
    theta = np.zeros(len(SCALES))
    residuals = _residuals(runs, values, theta)
    for _ in range(MOST_STEPS):
        slopes = np.column_stack(
            [(_residuals(runs, values, theta + STEP * unit) - residuals) / STEP for unit in np.eye(len(SCALES))]
        )
        move = -np.asarray(np.linalg.lstsq(slopes, residuals, rcond=None)[0], dtype=np.float64)
        move *= min(1.0, LARGEST_MOVE / float(np.abs(move).max(initial=1e-12)))
        theta, residuals, gained = _best_along(runs, values, theta, residuals, move)
        if gained < GOOD_ENOUGH:
            break
    return _factors(theta)


def _best_along(
    runs: Sequence[Run], values: Values, theta: Floats, residuals: Floats, move: Floats
) -> tuple[Floats, Floats, float]:
    """The move, halved until it reduces the loss, and the reduction."""
    cost = float(residuals @ residuals)
    for _ in range(4):
        tried = _residuals(runs, values, theta + move)
        if (gained := cost - float(tried @ tried)) > 0:
            return theta + move, tried, gained
        move = move / 2
    return theta, residuals, 0.0


def _residuals(runs: Sequence[Run], values: Values, theta: Floats) -> Floats:
    by_run = _errors(runs, values, _factors(theta))
    logs = [np.log1p(error / 100) for errors in by_run.values() for error in errors.values()]
    return np.concatenate((logs, PRIOR * theta))


def _factors(theta: Floats) -> dict[str, float]:
    return {scale: float(np.exp(value)) for scale, value in zip(SCALES, theta, strict=True)}


def _errors(runs: Sequence[Run], values: Values, scales: Mapping[str, float]) -> dict[str, Errors]:
    """Signed errors in % of each run's metrics, with the profile so scaled."""
    return _signed(_compared(runs, values, scales))


def beside(runs: Sequence[Run], base: HardwareProfile, fitted: HardwareProfile) -> dict[str, dict[str, Beside]]:
    """The figures of the runs measured on `base`, as it and as the fitted profile predict them. Raises RunsError as `calibrate`."""
    own = on_gpu(runs, base.name) if runs else []
    before, after = replayed(own, base), replayed(own, fitted)
    return {run: _beside(before[run], after[run]) for run in before}


def on_gpu(runs: Sequence[Run], name: str) -> list[Run]:
    """Those measured on that GPU. Raises RunsError if there is none."""
    own = [run for run in runs if load_gpu(run.gpu).name == name]
    if not own:
        raise RunsError(f"none of the {len(runs)} runs was measured on {name}; choose its GPU with --gpu.")
    return own


def _compared(runs: Sequence[Run], values: Values, scales: Mapping[str, float]) -> dict[str, Comparison]:
    """Each run's figures, with the profile so scaled."""
    return replayed(runs, profile(scaled(values, scales)))


def replayed(runs: Sequence[Run], gpu: HardwareProfile) -> dict[str, Comparison]:
    """Each run's figures on that GPU. Raises RunsError if a run has no figures of the whole run."""
    found = validate(runs, gpu=gpu)
    for result in found.results:
        if result.whole is None:
            raise RunsError(
                f"run {result.run.id!r} cannot be calibrated on: {result.reason or 'it has no whole-run figures.'}"
            )
    return {result.run.id: whole for result, whole in found.replayed}


def _signed(compared: Mapping[str, Comparison]) -> dict[str, Errors]:
    return {
        run: {name: error for name, error in whole.errors.items() if name in METRICS} for run, whole in compared.items()
    }


def _beside(before: Comparison, fitted: Comparison) -> dict[str, Beside]:
    return {
        name: Beside(before.measured[name], before.predicted[name], fitted.predicted[name]) for name in before.errors
    }


def _mape(by_run: Mapping[str, Errors]) -> Errors:
    every = {name: [abs(errors[name]) for errors in by_run.values() if name in errors] for name in METRICS}
    return {name: round(float(np.mean(errors)), 2) for name, errors in every.items() if errors}


def _verdict(before: Mapping[str, Errors], after: Mapping[str, Errors]) -> str:
    """Whether the mean improvement of held-out runs exceeds twice its standard error."""
    if len(after) < 2:
        return "not known: a single run leaves none to hold out"
    gains = np.array([_distance(before[run]) - _distance(errors) for run, errors in after.items()])
    mean, noise = float(gains.mean()), 2 * float(gains.std(ddof=1)) / len(gains) ** 0.5
    if mean > noise:
        return f"better: held-out runs are {mean:.1f} points nearer on average, beyond their noise of {noise:.1f}"
    if mean < -noise:
        return f"worse: held-out runs are {-mean:.1f} points farther off, beyond their noise of {noise:.1f}"
    return f"no improvement: a change of {mean:+.1f} points on held-out runs is within their noise of {noise:.1f}"


def _distance(errors: Errors) -> float:
    return float(np.mean([abs(error) for error in errors.values()]))
