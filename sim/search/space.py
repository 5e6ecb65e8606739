"""Which configurations are candidates: knobs with their values and the conditions between them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from sim.errors import ConfigError
from sim.search.blueprint import ARGUMENTS, Blueprint, Params


@dataclass(frozen=True, slots=True)
class Condition:
    """If every knob in `when` has one of the values given there, every knob in `only` must have one of its values there."""

    when: Mapping[str, tuple[Any, ...]]
    only: Mapping[str, tuple[Any, ...]]

    def allows(self, params: Params) -> bool:
        holds = all(params.get(name) in values for name, values in self.when.items())
        return not holds or all(params.get(name) in values for name, values in self.only.items())


@dataclass(frozen=True)
class Space:
    """Knobs of a blueprint in the order given, each with its values; `gpus` limits the GPUs of all replicas.

    `fixed` names knobs that were left as they are, with the reason. Raises ConfigError for an unknown knob, a knob without
    values, a value given twice, a value that the knob does not take, and a knob that changes nothing.
    """

    knobs: Mapping[str, tuple[Any, ...]]
    conditions: tuple[Condition, ...] = ()
    gpus: int | None = None
    fixed: Mapping[str, str] = field(default_factory=dict)
    over: Blueprint = field(default_factory=Blueprint)

    def __post_init__(self) -> None:
        if self.gpus is not None and self.over.fleet and self.over.fleet.is_scaled:
            raise ConfigError(
                "gpus limits replicas, and on those the fleet's autoscale decides; leave it out, its max limits them."
            )
        for name, values in self.knobs.items():
            self.over.check_knob(name, values)
            self._check_is_heard(name)
        for condition in self.conditions:
            for name, values in (*condition.when.items(), *condition.only.items()):
                self.over.check_knob(name, values)
                self._check_is_free(name)
        if self.gpus is not None and self.gpus < 1:
            raise ConfigError(f"gpus must be at least 1, got {self.gpus}.")

    @property
    def size(self) -> int:
        """Number of combinations, including those that conditions forbid."""
        return math.prod(map(len, self.knobs.values()))

    @property
    def layout(self) -> dict[str, tuple[Any, ...]]:
        """The knobs that decide on a number of GPUs."""
        return {name: values for name, values in self.knobs.items() if self.over.is_layout(name)}

    @property
    def least_gpus(self) -> int:
        """GPUs of the smallest layout, whatever conditions say."""
        smallest = {name: min(values, key=lambda value: value or 1) for name, values in self.layout.items()}
        return self.over.num_gpus(smallest)

    def candidates(self) -> Iterator[dict[str, Any]]:
        """All combinations that the conditions allow, the last knob changing fastest."""
        for values in product(*self.knobs.values()):
            params = dict(zip(self.knobs, values, strict=True))
            if self.allows(params):
                yield params

    def allows(self, params: Params) -> bool:
        if not all(condition.allows(params) for condition in self.conditions):
            return False
        if not self.over.num_replicas(params):
            return False
        return self.gpus is None or self.over.num_gpus(params) <= self.gpus

    def without(self, fixed: Mapping[str, str]) -> "Space":
        """The space without some knobs, which stay as they are; `fixed` has the reasons by knob."""
        knobs = {name: values for name, values in self.knobs.items() if name not in fixed}
        conditions = tuple(
            condition for condition in self.conditions if fixed.keys().isdisjoint((*condition.when, *condition.only))
        )
        return replace(self, knobs=knobs, conditions=conditions, fixed={**self.fixed, **fixed})

    def _check_is_free(self, name: str) -> None:
        if name not in self.knobs:
            raise ConfigError(f"a condition names {name}, which is no knob of the space; list it under knobs.")

    def _check_is_heard(self, name: str) -> None:
        """Raises ConfigError for an argument of all pools where every pool has its own."""
        own = [
            prefix + name in self.knobs or name in block.engine for prefix, block in self.over.pools.items() if prefix
        ]
        if name in ARGUMENTS and own and all(own):
            named = ", ".join(prefix + name for prefix in self.over.pools)
            raise ConfigError(f"the knob {name} changes nothing, for every pool has its own; search those: {named}.")
