"""The steps of a search in order: candidates, final selection, neighbours, advice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sim.errors import DoesNotFitError
from sim.fleet import DeployedPool
from sim.metrics.bottlenecks import Limits
from sim.search.analytic.candidates import analytic_search
from sim.search.analytic.workload_profile import WorkloadProfile
from sim.search.blueprint import Params
from sim.search.evaluate import Outcome, Scenario, Task
from sim.search.fidelity import Search
from sim.search.final_selection import Verdict, judge
from sim.search.neighbours import Sensitivity, refined, simplified
from sim.search.ranking import Candidate, front
from sim.search.recommend import Facts, Relaxation, on_answers, recommendations, relaxations
from sim.search.runner import Runner
from sim.search.slices import split_windows
from sim.search.space import Space
from sim.search.uncertainty import step_times_off
from sim.specs.autotuning import AutotuningParameters

Scorer = Literal["simulated", "analytic"]
BASELINE: Params = {}  # the engine arguments as given, nothing searched


@dataclass(frozen=True)
class Findings:
    """All results of a search. `baseline` is the outcome of the given engine arguments, nothing searched, on the whole trace."""

    scenario: Scenario
    space: Space
    verdict: Verdict
    candidates: tuple[Candidate, ...]
    pareto: tuple[Candidate, ...]
    baseline: Outcome
    relaxations: tuple[Relaxation, ...]
    sensitivity: Sensitivity
    recommendations: tuple[str, ...]
    num_replays: int
    trials: int
    seed: int

    @property
    def keeps_limits(self) -> bool:
        return self.scenario.target.violation(self.verdict.winner.whole.metrics) == 0


def optimize(
    scenario: Scenario,
    space: Space,
    runner: Runner,
    *,
    trials: int,
    seed: int,
    scorer: Scorer = "simulated",
    workload: WorkloadProfile | None = None,
    parameters: AutotuningParameters | None = None,
) -> Findings:
    """Search `space`; at most `trials` different candidates are tried, all of them where there are no more.

    `workload` and `parameters` serve the analytic scorer and the advice. Raises DoesNotFitError where no candidate can
    serve the trace.
    """
    constants = parameters or AutotuningParameters()
    split = split_windows(len(scenario.trace), seed)
    search = Search(scenario, space, split, runner, seed)
    if scorer == "analytic":
        profile = workload or WorkloadProfile.from_trace_analysis(scenario.trace, parameters=constants)
        candidates = analytic_search(search, profile, constants)
    else:
        candidates = simplified(search, search.run(trials))
    verdict = judge(scenario, candidates, split, runner, seed=seed)
    if verdict is None:
        raise DoesNotFitError(_nothing_fits(scenario, space, candidates))
    candidates, verdict, reactions = refined(search, candidates, verdict, feeds_back=scorer == "simulated")
    (baseline,) = runner.run([Task(BASELINE, explains=True)], "verifying")
    in_full = [candidate for candidate in candidates if candidate.share == 1.0 and candidate.outcome.is_feasible]
    wholes = [replace(one.candidate, outcome=one.whole) for one in verdict.finalists]
    kept = scenario.target.violation(verdict.winner.whole.metrics) == 0
    return Findings(
        scenario=scenario,
        space=space,
        verdict=verdict,
        candidates=tuple(candidates),
        pareto=tuple(front(in_full, scenario.target)),
        baseline=baseline,
        relaxations=() if kept else relaxations(wholes, scenario.target),
        sensitivity=reactions,
        recommendations=_advice(scenario, verdict, constants, reactions),
        num_replays=runner.num_replays,
        trials=trials,
        seed=seed,
    )


def _advice(
    scenario: Scenario, verdict: Verdict, constants: AutotuningParameters, reactions: Sensitivity
) -> tuple[str, ...]:
    return (*on_answers(verdict.winner.candidate.params), *_on_serving(scenario, verdict, constants, reactions))


def _on_serving(
    scenario: Scenario, verdict: Verdict, constants: AutotuningParameters, reactions: Sensitivity
) -> tuple[str, ...]:
    winner = verdict.winner
    fleet = scenario.deploy_fleet(winner.candidate.params)

    def facts(pool: DeployedPool, outcome: Outcome, seen: Sensitivity) -> Facts:
        deployment, off = pool.deployment, step_times_off(verdict.band)
        target, robustness = scenario.target, winner.robustness
        return Facts(deployment.engine, deployment.plan, outcome, target, robustness, constants, seen, off)

    first = facts(fleet.pools[0], winner.whole, reactions)
    if fleet.asked is None:
        return recommendations(first)
    figures = zip(fleet.pools, winner.whole.metrics["pools"], strict=True)
    return recommendations(
        first, {pool.name: facts(pool, _alone(pool, of), _of_pool(reactions, pool.name)) for pool, of in figures}
    )


def _alone(pool: DeployedPool, figures: Mapping[str, Any]) -> Outcome:
    """What a pool did, as if it were the whole; nobody expects graphs of prompts alone."""
    metrics = dict(figures)
    if pool.role == "prefill":
        metrics["cudagraph_step_fraction"] = None
    return Outcome(None, metrics, Limits(figures["limits"]["busy"], figures["limits"]["queued"]))


def _of_pool(reactions: Sensitivity, pool: str) -> Sensitivity:
    """With the knobs of a pool also under their names without it, as those of a lone deployment are called."""
    own = {name.removeprefix(f"{pool}."): points for name, points in reactions.items() if name.startswith(f"{pool}.")}
    return {**reactions, **own}


def _nothing_fits(scenario: Scenario, space: Space, candidates: Sequence[Candidate]) -> str:
    where = f"{scenario.model.name} on {scenario.gpu.name}"
    if not candidates and space.gpus is not None and space.least_gpus > space.gpus:
        return (
            f"the space for {where} has {space.least_gpus} GPUs at least, more than the {space.gpus} that gpus allows."
        )
    if not candidates:
        return f"the space for {where} has no candidate that its conditions and gpus allow; loosen them."
    return f"none of {len(candidates):,} candidates for {where} can serve the trace; {candidates[0].outcome.reason}"
