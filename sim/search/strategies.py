"""Finds candidates in a space: every layout of GPUs first, then what Optuna proposes. A small space is enumerated instead."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

from sim.errors import SimError
from sim.search.evaluate import Outcome, Scenario
from sim.search.objectives import Target
from sim.search.space import FLEET, REPLICAS, Params, Space, canonical, num_flags, num_gpus, num_replicas

NEAR = 4  # up to this many times as many GPUs as the winner, and as few
LAYOUT = ("tensor_parallel_size", REPLICAS)


def layouts(scenario: Scenario, space: Space) -> list[dict[str, Any]]:
    """One candidate for each layout of GPUs, fewest GPUs first; empty if the space has only one layout.

    Other knobs have their first values; if the engine cannot serve the trace with these, one of them is changed. If it
    cannot serve it at a tensor parallel size at all, only the smallest layout of that size is included.
    """
    knobs = {name: space.knobs[name] for name in LAYOUT if len(space.knobs.get(name, ())) > 1}
    if not knobs:
        return []

    @cache
    def serves(engine: frozenset[tuple[str, Any]]) -> bool:
        return _serves(scenario, dict(engine))

    found: list[dict[str, Any]] = []
    idle: dict[Any, dict[str, Any]] = {}
    for layout in sorted(_laid_out(knobs), key=lambda params: num_gpus(params, scenario.base)):
        tries = [{**others, **layout} for others in _others(space) if space.allows({**others, **layout})]
        able = (params for params in tries if serves(frozenset((k, v) for k, v in params.items() if k not in FLEET)))
        if (params := next(able, None)) is not None:
            found.append(params)
        elif tries:
            idle.setdefault(layout.get("tensor_parallel_size"), tries[0])
    return [*found, *idle.values()]


def spread(found: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """All of them, or `most` at equal distances if there are more."""
    if len(found) <= most:
        return list(found)
    return [found[place * (len(found) - 1) // max(1, most - 1)] for place in range(most)]


def around(winner: Params, space: Space) -> list[dict[str, Any]]:
    """The winner on every layout that the space allows with a quarter to four times its GPUs."""
    knobs = {name: space.knobs[name] for name in LAYOUT if name in space.knobs}
    size = num_gpus(winner)

    def is_near(params: Params) -> bool:
        return size / NEAR <= num_gpus(params) <= size * NEAR

    return [one for layout in _laid_out(knobs) if space.allows(one := {**winner, **layout}) and is_near(one)]


def _laid_out(knobs: Params) -> Iterator[dict[str, Any]]:
    for values in product(*knobs.values()):
        yield dict(zip(knobs, values, strict=True))


def _others(space: Space) -> Iterator[dict[str, Any]]:
    """All knobs at their first values, then each knob that is not part of a layout at its other values in turn."""
    first = {name: values[0] for name, values in space.knobs.items()}
    yield first
    for name, values in space.knobs.items():
        for value in values[1:] if name not in LAYOUT else ():
            yield {**first, name: value}


def _serves(scenario: Scenario, params: Params) -> bool:
    try:
        return scenario.why_not(scenario.deploy(params)) is None
    except SimError:
        return False


ENUMERABLE = 2_000  # combinations; a larger space is not enumerated
BATCH = 16  # proposals at once; the same for any number of workers, so that results are the same
OF_A_VIOLATION, OF_AN_INFEASIBLE = 1e9, 1e12  # losses above any real one

TryOut = Callable[[Sequence[Params], int], Sequence[Outcome]]
"""Outcomes of candidates, given how many were tried before them."""


class Distinct:
    """Tells candidates apart by what they start; of those that start the same, the one with the fewest flags is kept."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._known: dict[str, Params] = {}

    def key(self, params: Params) -> str:
        """Equal for candidates that behave alike. Of `max_model_len` only counts whether the trace's requests fit."""
        try:
            deployed = self._scenario.deploy(params)
        except SimError:
            return canonical(params)
        engine, plan = deployed.engine, deployed.plan
        fits = plan.feasible and plan.max_model_len >= self._scenario.longest_request
        if not fits:
            return canonical(params)
        facts = {name: getattr(engine, name) for name in type(engine).__dataclass_fields__}
        del facts["max_model_len"], facts["gpu_memory_utilization"]
        count = num_replicas(params)
        router = self._scenario.router_of(params) if count > 1 else None
        holds_longest = plan.longest_model_len >= self._scenario.longest_request
        return repr((facts, plan.num_gpu_blocks, holds_longest, count, router))

    def simplest(self, candidates: Iterator[dict[str, Any]]) -> list[Params]:
        """One candidate of each kind, in order of first appearance."""
        for params in candidates:
            key = self.key(params)
            known = self._known.get(key)
            if known is None or self._flags(params) < self._flags(known):
                self._known[key] = params
        return list(self._known.values())

    def _flags(self, params: Params) -> int:
        return num_flags(self._scenario.engine(params))


def propose(scenario: Scenario, space: Space, try_out: TryOut, *, trials: int, seed: int) -> dict[str, Params]:
    """Try every layout of GPUs, then what Optuna proposes, until `trials` different candidates are tried or no new ones come.

    Returns the candidates by key. Optuna uses TPE for one goal, NSGA-II for several; `try_out` gets batches of new ones.
    """
    distinct, losses, tried = Distinct(scenario), _Losses(scenario.target), dict[str, Params]()
    study, knobs = _study(scenario.target, seed), dict(space.knobs)
    laid_out = {distinct.key(params): params for params in spread(layouts(scenario, space), trials)}
    losses.add(laid_out, try_out(list(laid_out.values()), 0))
    tried |= laid_out
    study.add_trials([_told(params, knobs, losses.of(key)) for key, params in laid_out.items()])
    study.enqueue_trial(dict.fromkeys(knobs, 0))
    for _ in range(10 * math.ceil((trials - len(tried)) / BATCH)):
        asked = [study.ask() for _ in range(BATCH)]
        proposals = [_suggest(trial, knobs) for trial in asked]
        keys = [distinct.key(params) if space.allows(params) else None for params in proposals]
        new = {key: params for key, params in zip(keys, proposals, strict=True) if key and key not in tried}
        new = dict(list(new.items())[: trials - len(tried)])
        losses.add(new, try_out(list(new.values()), len(tried)))
        tried |= new
        for trial, key in zip(asked, keys, strict=True):
            study.tell(trial, losses.of(key))
        if len(tried) >= trials:
            break
    return tried


class _Losses:
    """The losses that Optuna is told, less is better: breaking a limit is worse than any loss, being infeasible worst."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._found: dict[str, list[float]] = {}

    def add(self, new: Mapping[str, Params], outcomes: Sequence[Outcome]) -> None:
        for key, outcome in zip(new, outcomes, strict=True):
            self._found[key] = [self._loss(outcome, place) for place in range(len(self._target.goals))]

    def of(self, key: str | None) -> list[float]:
        """The losses of a candidate. One that was not tried, because conditions forbid it or trials ran out, counts as infeasible."""
        return self._found.get(key or "", [OF_AN_INFEASIBLE] * len(self._target.goals))

    def _loss(self, outcome: Outcome, place: int) -> float:
        if not outcome.is_feasible:
            return OF_AN_INFEASIBLE
        lateness = self._target.lateness(outcome.metrics)
        if lateness > 0:
            return OF_A_VIOLATION * (1 + lateness)
        return min(self._target.goals[place].loss(outcome.metrics), OF_A_VIOLATION)


def _study(target: Target, seed: int) -> Any:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if len(target.goals) == 1:
        return optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    sampler = optuna.samplers.NSGAIISampler(population_size=2 * BATCH, seed=seed)
    return optuna.create_study(directions=["minimize"] * len(target.goals), sampler=sampler)


def _told(params: Params, knobs: Mapping[str, tuple[Any, ...]], losses: list[float]) -> Any:
    """A finished Optuna trial for a candidate that Optuna did not propose."""
    from optuna.distributions import CategoricalDistribution
    from optuna.trial import create_trial

    distributions: dict[str, Any] = {
        name: CategoricalDistribution(range(len(values))) for name, values in knobs.items()
    }
    places = {name: values.index(params[name]) for name, values in knobs.items()}
    return create_trial(params=places, distributions=distributions, values=losses)


def _suggest(trial: Any, knobs: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """A proposal. Optuna chooses places in the lists of values, since values may be lists, which it does not take."""
    return {name: values[trial.suggest_categorical(name, range(len(values)))] for name, values in knobs.items()}
