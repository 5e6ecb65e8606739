"""The answer of a search: one JSON object, and the Python objects that hold it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sim.errors import ConfigError, nearest
from sim.metrics.slo import limits_json
from sim.search.bench_load import BenchLoad, Verification
from sim.search.blueprint import REPLICAS, ROUTER, Params
from sim.search.evaluate import Outcome, Scenario
from sim.search.final_selection import Finalist, Verdict
from sim.search.optimize import BASELINE, Findings
from sim.search.ranking import Candidate
from sim.search.uncertainty import step_times_off
from sim.specs.serve_command import serve_command
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


def candidate_row(candidate: Mapping[str, Any]) -> dict[str, Any]:
    """A candidate as one flat row."""
    facts = {
        name: candidate[name]
        for name in (REPLICAS, ROUTER, "num_gpus", "feasible", "reason", "share", "score")
        if name in candidate
    }
    return {**_plain(candidate["engine"]), **facts, "slo_violation": candidate["slo_violation"], **_figures(candidate)}


def sensitivity_rows(sensitivity: Mapping[str, Iterable[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    return [
        {"knob": knob, **_plain({"value": point["value"]}), "is_winner": point["is_winner"], "reason": point["reason"]}
        | {name: point[name] for name in ("share", "score", "slo_violation")}
        | _figures(point)
        for knob, points in sensitivity.items()
        for point in points
    ]


def _figures(row: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics of a row, without those that have a column of their own."""
    return {name: value for name, value in row["metrics"].items() if name not in {REPLICAS, "num_gpus"}}


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with lists as text, one cell each."""
    return {
        name: " ".join(map(str, value)) if isinstance(value, list | tuple) else value for name, value in values.items()
    }


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
        "gpu": scenario.gpu.name,
        **scenario.to_json(),
        "vllm_version": scenario.deploy(verdict.winner.candidate.params).engine.vllm_version,
        "servecast_version": __version__,
        "objective": [goal.name for goal in scenario.target.goals],
        "score_unit": scenario.target.goals[0].unit,
        "slo": limits_json(scenario.target.slos),
        "feasible": findings.keeps_limits,
        "best": _best(findings, check),
        "finalists": [_finalist(scenario, finalist) for finalist in verdict.finalists],
        "baseline": _baseline(findings),
        "relax": [
            {"slo": one.slo.name, "limit_ms": one.slo.limit_ms, "to_ms": one.to_ms, **_config(scenario, one.candidate.params)}
            for one in findings.relaxations
        ],
        "pareto": [_row(scenario, candidate) for candidate in findings.pareto],
        "recommendations": list(findings.recommendations),
        "fixed": dict(findings.space.fixed),
        "sensitivity": _sensitivity(findings),
        "evaluated": len(findings.candidates),
        "infeasible": [_config(scenario, one.params) | {"reason": one.outcome.reason} for one in infeasible],
        "candidates": [_row(scenario, candidate) for candidate in findings.candidates],
        "confidence": _confidence(findings),
    }  # fmt: skip


def unservable_json(scenario: Scenario) -> dict[str, Any] | None:
    """The requests that no configuration serves; None if there are none."""
    found = scenario.unservable
    return found and found.to_json()


def engine_json(scenario: Scenario, params: Params) -> dict[str, Any]:
    """The engine arguments that are not left to vLLM, under its names."""
    engine = scenario.engine(params)
    shown = engine.given.keys() | {name for name, value in params.items() if value is not None}
    return {entry.name: getattr(engine, entry.name) for entry in fields(engine) if entry.name in shown}


def deploy_commands(scenario: Scenario, params: Params) -> str:
    """The `vllm serve` line, and how many times to run it."""
    command = serve_command(scenario.model.name, scenario.engine(params))
    count = scenario.blueprint.num_replicas(params)
    return (
        command
        if count == 1
        else f"{command}  # {count} times, behind a {scenario.blueprint.router_of(params).replace('_', '-')} router"
    )


def _config(scenario: Scenario, params: Params) -> dict[str, Any]:
    return {
        "engine": engine_json(scenario, params),
        REPLICAS: scenario.blueprint.num_replicas(params),
        **({ROUTER: params[ROUTER]} if ROUTER in params else {}),
        "num_gpus": scenario.blueprint.num_gpus(params),
    }


def _score(scenario: Scenario, metrics: Mapping[str, Any]) -> float | None:
    value = metrics.get(scenario.target.goals[0].key)
    return None if value is None else float(value)


def _row(scenario: Scenario, candidate: Candidate) -> dict[str, Any]:
    """A candidate in the list of all candidates, with its latest replay."""
    return _config(scenario, candidate.params) | {
        "feasible": candidate.outcome.is_feasible,
        "reason": candidate.outcome.reason,
        "share": candidate.share,
        "score": _score(scenario, candidate.metrics),
        "slo_violation": scenario.target.violation(candidate.metrics) if candidate.outcome.is_feasible else None,
        "metrics": candidate.metrics,
    }


def _finalist(scenario: Scenario, finalist: Finalist) -> dict[str, Any]:
    params, limits = finalist.candidate.params, finalist.whole.limits
    return _config(scenario, params) | {
        "score": _score(scenario, finalist.whole.metrics),
        "held_out_score": _score(scenario, finalist.held_out.metrics),
        "search_score": _score(scenario, finalist.candidate.metrics),
        "metrics": finalist.whole.metrics,
        "confidence": dict(finalist.forecast),
        "tied": finalist.is_tied,
        "slo_robustness": finalist.robustness,
        "limits": limits.to_json() if limits else None,
        "serve_command": deploy_commands(scenario, params),
    }


def _best(findings: Findings, check: Verification) -> dict[str, Any]:
    scenario, verdict = findings.scenario, findings.verdict
    params = verdict.winner.candidate.params
    plan = scenario.deploy(params).plan
    return _finalist(scenario, verdict.winner) | {
        "tied_with": [
            _config(scenario, one.candidate.params) | {"score": _score(scenario, one.whole.metrics)} for one in verdict.tied
        ],
        "bench_command": check.command,
        "verify": check.to_json(),
        "memory": plan.to_json() | {"ledger": [line._asdict() for line in plan.ledger]},
    }  # fmt: skip


def _baseline(findings: Findings) -> dict[str, Any]:
    outcome: Outcome = findings.baseline
    return _config(findings.scenario, BASELINE) | {
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
