"""The answer of a search: one JSON object, and the Python objects that hold it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sim.errors import ConfigError, nearest
from sim.fleet import DeployedFleet
from sim.memory.plan import MemoryPlan
from sim.metrics.fleet import same
from sim.search.bench_load import BenchLoad, Verification
from sim.search.candidate_json import candidate_row, config_json, deploy_commands, portable_fleet, sensitivity_rows
from sim.search.evaluate import Outcome, Scenario
from sim.search.final_selection import Finalist, Verdict
from sim.search.optimize import BASELINE, Findings
from sim.search.ranking import Candidate
from sim.search.uncertainty import step_times_off
from sim.specs.hardware import load_gpu
from sim.specs.slo import limits_json
from sim.version import __version__

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Optimization:
    """`summary` is the JSON object of `servecast optimize`: best first of all, then the evidence. `load.write` writes the
    dataset that the line in `best["bench_command"]` reads.
    """

    summary: dict[str, Any]
    load: BenchLoad

    @property
    def best(self) -> dict[str, Any]:
        """The winner: `engine`, `metrics`, `score`, `tied_with`, `serve_command` and more."""
        best: dict[str, Any] = self.summary["best"]
        return best

    @cached_property
    def candidates(self) -> "pd.DataFrame":
        """One row a candidate: knobs, feasibility, score and the figures of its longest replay."""
        return _frame(map(candidate_row, self.summary["candidates"]))

    @cached_property
    def pareto(self) -> "pd.DataFrame":
        """The Pareto front: candidates that no other dominates."""
        return _frame(map(candidate_row, self.summary["pareto"]))

    @cached_property
    def sensitivity(self) -> "pd.DataFrame":
        """One row for each value of each knob, the other knobs as the winner has them."""
        return _frame(sensitivity_rows(self.summary["sensitivity"]))

    def plot(self, knob: str | None = None) -> "Figure":
        """A matplotlib Figure of all candidates, or of the effect of one knob. Raises ConfigError for a knob not in `sensitivity`."""
        from sim.report.search_plots import pareto_figure, sensitivity_figure

        if knob is None:
            return pareto_figure(self.summary)
        if knob not in self.summary["sensitivity"]:
            known = tuple(self.summary["sensitivity"])
            raise ConfigError(f"{knob!r} was not varied; there are {', '.join(known) or 'none'}.{nearest(knob, known)}")
        return sensitivity_figure(self.summary, knob)

    def _repr_html_(self) -> str:
        from sim.report.html import optimization_html

        return optimization_html(self.summary)


@dataclass(frozen=True)
class Capacity:
    """`summary` is the JSON object of `servecast capacity`. `load.write` writes the dataset that the line in
    `bench_command` reads; None where there is no such line.
    """

    summary: dict[str, Any]
    load: BenchLoad | None

    @cached_property
    def curve(self) -> "pd.DataFrame":
        """One row a request rate, ascending."""
        return _frame(self.summary["curve"])

    def plot(self) -> "Figure":
        """A matplotlib Figure: each limited percentile against the request rate."""
        from sim.report.search_plots import capacity_figure

        return capacity_figure(self.summary)

    def _repr_html_(self) -> str:
        from sim.report.html import capacity_html

        return capacity_html(self.summary)


def _frame(rows: Iterable[Mapping[str, Any]]) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame(list(rows))


def answer(findings: Findings, check: Verification) -> dict[str, Any]:
    """All findings, best first, under the keys that docs/optimizer.md explains."""
    scenario, verdict = findings.scenario, findings.verdict
    infeasible = [candidate for candidate in findings.candidates if not candidate.outcome.is_feasible]
    return {
        "unservable": unservable_json(scenario),
        "model_id": scenario.model.name,
        **_deployed_json(scenario),
        **scenario.to_json(),
        "vllm_version": scenario.deploy_fleet(verdict.winner.candidate.params).first.engine.vllm_version,
        "servecast_version": __version__,
        "trials": findings.trials,
        "seed": findings.seed,
        "objective": [goal.name for goal in scenario.target.goals],
        "score_unit": scenario.target.goals[0].unit,
        "slo": limits_json(scenario.target.slos),
        "feasible": findings.keeps_limits,
        "best": _best(findings, check),
        "finalists": [_finalist(scenario, finalist) for finalist in verdict.finalists],
        "baseline": _baseline(findings),
        "relax": [
            {"slo": one.slo.name, "limit_ms": one.slo.limit_ms, "to_ms": one.to_ms, **config_json(scenario, one.candidate.params)}
            for one in findings.relaxations
        ],
        "pareto": [_row(scenario, candidate) for candidate in findings.pareto],
        "recommendations": list(findings.recommendations),
        "fixed": dict(findings.space.fixed),
        "sensitivity": _sensitivity(findings),
        "evaluated": len(findings.candidates),
        "infeasible": [config_json(scenario, one.params) | {"reason": one.outcome.reason} for one in infeasible],
        "candidates": [_row(scenario, candidate) for candidate in findings.candidates],
        "confidence": _confidence(findings),
    }  # fmt: skip


def _deployed_json(scenario: Scenario) -> dict[str, Any]:
    """The GPU; of a fleet that of all its pools, null where they differ, and what was given."""
    if scenario.fleet is None:
        return {"gpu": scenario.gpu.name}
    pools = [
        {"pool": name, "role": block.role, "gpu": load_gpu(block.gpu).name if block.gpu else scenario.gpu.name}
        for name, block in zip(scenario.fleet.names, scenario.fleet.pools, strict=True)
    ]
    return {"gpu": same(pool["gpu"] for pool in pools), "fleet": scenario.fleet.to_json(), "pools": pools}


def _limits_of_pools(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """In words; the shares stand with each pool's figures."""
    return {"text": "; ".join(f"{pool['pool']}: {pool['limits']['text']}" for pool in metrics["pools"])}


def unservable_json(scenario: Scenario) -> dict[str, Any] | None:
    """The requests that no configuration serves; None if there are none."""
    found = scenario.unservable
    return found and found.to_json()


def _score(scenario: Scenario, metrics: Mapping[str, Any]) -> float | None:
    value = metrics.get(scenario.target.goals[0].key)
    return None if value is None else float(value)


def _row(scenario: Scenario, candidate: Candidate) -> dict[str, Any]:
    """A candidate in the list of all candidates, with its latest replay."""
    return config_json(scenario, candidate.params) | {
        "feasible": candidate.outcome.is_feasible,
        "reason": candidate.outcome.reason,
        "share": candidate.share,
        "score": _score(scenario, candidate.metrics),
        "slo_violation": scenario.target.violation(candidate.metrics) if candidate.outcome.is_feasible else None,
        "metrics": candidate.metrics,
    }


def _finalist(scenario: Scenario, finalist: Finalist) -> dict[str, Any]:
    params, limits = finalist.candidate.params, finalist.whole.limits
    return config_json(scenario, params) | {
        "score": _score(scenario, finalist.whole.metrics),
        "held_out_score": _score(scenario, finalist.held_out.metrics),
        "search_score": _score(scenario, finalist.candidate.metrics),
        "metrics": finalist.whole.metrics,
        "confidence": dict(finalist.forecast),
        "tied": finalist.is_tied,
        "slo_robustness": finalist.robustness,
        "limits": limits.to_json() if limits else _limits_of_pools(finalist.whole.metrics),
        "serve_command": deploy_commands(scenario, params),
    }


def _best(findings: Findings, check: Verification) -> dict[str, Any]:
    scenario, verdict = findings.scenario, findings.verdict
    fleet = scenario.deploy_fleet(verdict.winner.candidate.params)
    return _finalist(scenario, verdict.winner) | {
        "tied_with": [
            config_json(scenario, one.candidate.params) | {"score": _score(scenario, one.whole.metrics)} for one in verdict.tied
        ],
        "bench_command": check.command,
        "verify": check.to_json(),
        **({"memory": _memory(fleet.first.plan)} if fleet.asked is None else _fleet_json(scenario, fleet)),
    }  # fmt: skip


def _memory(plan: MemoryPlan) -> dict[str, Any]:
    return plan.to_json() | {"ledger": [line._asdict() for line in plan.ledger]}


def _fleet_json(scenario: Scenario, fleet: DeployedFleet) -> dict[str, Any]:
    """The winning fleet as a fleet file, and the memory of a GPU of each pool."""
    memory = {pool.name: _memory(pool.deployment.plan) for pool in fleet.pools}
    return {"fleet": portable_fleet(fleet, scenario.base), "memory": memory}


def _baseline(findings: Findings) -> dict[str, Any]:
    outcome: Outcome = findings.baseline
    return config_json(findings.scenario, BASELINE) | {
        "reason": outcome.reason,
        "score": _score(findings.scenario, outcome.metrics),
        "metrics": outcome.metrics,
    }


def _sensitivity(findings: Findings) -> dict[str, list[dict[str, Any]]]:
    winner = findings.verdict.winner.candidate.params
    return {
        name: [
            {
                "value": point.value,
                "is_winner": point.value == winner.get(name),
                "reason": point.outcome.reason,
                "slo_violation": findings.scenario.target.violation(point.outcome.metrics)
                if point.outcome.is_feasible
                else None,
                "share": point.share,
                "score": _score(findings.scenario, point.outcome.metrics),
                "metrics": point.outcome.metrics,
            }
            for point in points
        ]
        for name, points in findings.sensitivity.items()
    }


def _confidence(findings: Findings) -> dict[str, Any]:
    """The confidence in the winner's forecast, with notes on how the search compared candidates."""
    return {**findings.verdict.winner.forecast, "notes": list(_notes(findings.verdict))}


def _notes(verdict: Verdict) -> Iterator[str]:
    yield "The score is that of the whole trace; held_out_score is of a part that the search did not see, where a queue starts empty."
    off = step_times_off(verdict.band)
    yield f"Ties hold over {len(verdict.finalists)} finalists' replays of other slices and of step times {off:.1%} off."
    if verdict.band is not None:
        yield (
            f"Finalists up to {verdict.band:.1%} behind are tied where step times that are off move their score as far: "
            "the forecast may be off by as much."
        )
