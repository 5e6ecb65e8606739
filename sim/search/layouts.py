"""How GPUs are laid out: every number of replicas with every tensor parallel size that the space allows."""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from typing import Any

from sim.errors import SimError
from sim.search.evaluate import Scenario
from sim.search.space import REPLICAS, Params, Space, num_gpus

NEAR = 4  # times as many GPUs, or as few
LAYOUT = ("tensor_parallel_size", REPLICAS)


def layouts(scenario: Scenario, space: Space) -> list[dict[str, Any]]:
    """A candidate a layout, fewest GPUs first: other knobs as they come first, or one changed where else nothing starts.

    Of layouts whose engine cannot serve the trace the smallest stands for all. Empty where the space has one layout.
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
        able = (params for params in tries if serves(frozenset((k, v) for k, v in params.items() if k != REPLICAS)))
        if (params := next(able, None)) is not None:
            found.append(params)
        elif tries:
            idle.setdefault(layout.get("tensor_parallel_size"), tries[0])
    return [*found, *idle.values()]


def spread(found: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """All of them, or so many at equal distances where they are more."""
    if len(found) <= most:
        return list(found)
    return [found[place * (len(found) - 1) // max(1, most - 1)] for place in range(most)]


def around(winner: Params, space: Space) -> list[dict[str, Any]]:
    """The winner on every layout that the space allows, of a quarter to four times its GPUs."""
    knobs = {name: space.knobs[name] for name in LAYOUT if name in space.knobs}
    size = num_gpus(winner)

    def is_near(params: Params) -> bool:
        return size / NEAR <= num_gpus(params) <= size * NEAR

    return [one for layout in _laid_out(knobs) if space.allows(one := {**winner, **layout}) and is_near(one)]


def _laid_out(knobs: Params) -> Iterator[dict[str, Any]]:
    for values in product(*knobs.values()):
        yield dict(zip(knobs, values, strict=True))


def _others(space: Space) -> Iterator[dict[str, Any]]:
    """All other knobs at their first values, then each in turn at its further ones."""
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
