"""Finds candidates in a space: every layout of GPUs first, then what Optuna proposes. A small space is enumerated instead."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations, product
from typing import Any

import numpy as np

from sim.errors import SimError
from sim.fleet import DeployedFleet, DeployedPool
from sim.search.blueprint import REPLICAS, SECTIONS, Params, canonical
from sim.search.evaluate import Outcome, Scenario
from sim.search.objectives import Target
from sim.search.space import Space

NEAR = 4  # up to this many times as many GPUs as the winner, and as few
MOST_LAYOUTS = 2_000  # of a fleet with many pools; so many are drawn where there are more
EVERY_LAYOUT = 2  # knobs of a layout: around a winner with more, those are replayed that are a step away


def layouts(scenario: Scenario, space: Space, seed: int = 0) -> list[dict[str, Any]]:
    """One candidate for each layout of GPUs, fewest GPUs first; empty if the space has only one layout.

    Other knobs have their first values; if the engine cannot serve the trace with these, one of them is changed. If it
    cannot serve it at some numbers of ranks and stages at all, only the smallest layout of these is included.
    """
    knobs = {name: values for name, values in space.layout.items() if len(values) > 1}
    if not knobs:
        return []

    @cache
    def serves(engines: frozenset[tuple[str, Any]]) -> bool:
        return _serves(scenario, dict(engines))

    found: list[dict[str, Any]] = []
    idle: dict[Any, dict[str, Any]] = {}
    first = _first(space)
    for layout in sorted(_drawn(knobs, seed), key=lambda params: space.over.num_gpus({**first, **params})):
        tries = [{**others, **layout} for others in _others(space) if space.allows({**others, **layout})]
        able = (params for params in tries if serves(frozenset(_of_engines(params))))
        if (params := next(able, None)) is not None:
            found.append(params)
        elif tries:
            idle.setdefault(tuple(value for name, value in layout.items() if not name.endswith(REPLICAS)), tries[0])
    return [*found, *idle.values()]


def _of_engines(params: Params) -> Iterator[tuple[str, Any]]:
    """What decides on whether replicas start and hold the trace: not how many there are, as long as there are any."""
    for name, value in params.items():
        if name.endswith(REPLICAS):
            yield name, min(value, 1)
        elif name.rpartition(".")[2] not in SECTIONS:
            yield name, value


def spread(found: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """All of them, or `most` at equal distances if there are more."""
    if len(found) <= most:
        return list(found)
    return [found[place * (len(found) - 1) // max(1, most - 1)] for place in range(most)]


def around(winner: Params, space: Space) -> list[dict[str, Any]]:
    """The winner on every layout that the space allows with a quarter to four times its GPUs."""
    size, knobs = space.over.num_gpus(winner), space.layout
    found = _laid_out(knobs) if len(knobs) <= EVERY_LAYOUT else _steps_away(winner, knobs)

    def is_near(params: Params) -> bool:
        return size / NEAR <= space.over.num_gpus(params) <= size * NEAR

    return [one for layout in found if space.allows(one := {**winner, **layout}) and is_near(one)]


def _laid_out(knobs: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    for values in product(*knobs.values()):
        yield dict(zip(knobs, values, strict=True))


def _steps_away(winner: Params, knobs: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """One or two knobs at the value before or after the winner's: more and fewer GPUs, and some moved to another pool."""
    steps = {name: _next_to(values, winner[name]) for name, values in knobs.items()}
    yield from ({name: value} for name, values in steps.items() for value in values)
    for one, other in combinations(steps, 2):
        yield from ({one: value, other: also} for value in steps[one] for also in steps[other])


def _next_to(values: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    place = values.index(value)
    return (*values[max(0, place - 1) : place], *values[place + 1 : place + 2])


def _drawn(knobs: Mapping[str, tuple[Any, ...]], seed: int) -> Iterable[dict[str, Any]]:
    """Every layout, or as many different ones as are looked at, drawn by `seed`."""
    if math.prod(map(len, knobs.values())) <= MOST_LAYOUTS:
        return _laid_out(knobs)
    rng = np.random.default_rng([seed, 4])
    places = [rng.integers(len(values), size=MOST_LAYOUTS).tolist() for values in knobs.values()]
    found = dict.fromkeys(zip(*places, strict=True))
    return [{name: values[place] for (name, values), place in zip(knobs.items(), row, strict=True)} for row in found]


def _first(space: Space) -> dict[str, Any]:
    return {name: values[0] for name, values in space.knobs.items()}


def _others(space: Space) -> Iterator[dict[str, Any]]:
    """All knobs at their first values, then each knob that is not part of a layout at its other values in turn."""
    first, layout = _first(space), space.layout
    yield first
    for name, values in space.knobs.items():
        for value in values[1:] if name not in layout else ():
            yield {**first, name: value}


def _serves(scenario: Scenario, params: Params) -> bool:
    try:
        return scenario.cannot_serve(scenario.deploy_fleet(params)) is None
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
            fleet = self._scenario.deploy_fleet(params)
        except SimError:
            return canonical(params)
        longest = self._scenario.longest_request
        plans = [pool.deployment.plan for pool in fleet.pools]
        if not all(plan.feasible and plan.max_model_len >= longest for plan in plans):
            return canonical(params)
        return repr(([_behaviour(pool, longest) for pool in fleet.pools], *_gateway(fleet)))

    def simplest(self, candidates: Iterator[dict[str, Any]], most: float = math.inf) -> list[Params] | None:
        """One candidate of each kind, in order of first appearance; None as soon as there are more than `most` kinds."""
        for params in candidates:
            key = self.key(params)
            known = self._known.get(key)
            if known is None or self._flags(params) < self._flags(known):
                self._known[key] = params
            if len(self._known) > most:
                return None
        return list(self._known.values())

    def _flags(self, params: Params) -> int:
        return self._scenario.blueprint.num_flags(params)


def _behaviour(pool: DeployedPool, longest: int) -> tuple[Any, ...]:
    """What a pool does to requests of up to so many tokens."""
    engine, plan = pool.deployment.engine, pool.deployment.plan
    facts = {name: getattr(engine, name) for name in type(engine).__dataclass_fields__}
    del facts["max_model_len"], facts["gpu_memory_utilization"]
    return pool.name, facts, plan.num_gpu_blocks, plan.longest_model_len >= longest, pool.num_replicas


def _gateway(fleet: DeployedFleet) -> tuple[Any, ...]:
    """What chooses among replicas, where there is a choice (a policy may always add replicas to choose from), and what they share."""
    answering = sum(pool.num_addresses for pool in fleet.pools if pool.role != "prefill")
    router = fleet.router if max(answering, fleet.most_addresses if fleet.dynamics else 0) > 1 else None
    handing = fleet.disaggregation
    policies = dict(fleet.dynamics.autoscale) if fleet.dynamics else {}
    return router, handing and (handing.decider, handing.router or fleet.router), policies, fleet.sharing


def propose(scenario: Scenario, space: Space, try_out: TryOut, *, trials: int, seed: int) -> dict[str, Params]:
    """Try every layout of GPUs, then what Optuna proposes, until `trials` different candidates are tried or no new ones come.

    Returns the candidates by key. Optuna uses TPE for one goal, NSGA-II for several; `try_out` gets batches of new ones.
    """
    distinct, losses, tried = Distinct(scenario), _Losses(scenario.target), dict[str, Params]()
    study, knobs = _study(scenario.target, seed), dict(space.knobs)
    most = (
        trials if len(space.over.pools) == 1 else max(1, trials // 2)
    )  # pools have many layouts, and knobs of their own
    laid_out = {distinct.key(params): params for params in spread(layouts(scenario, space, seed), most)}
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
