"""Which configurations are candidates: knobs with their values, and conditions between them."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Any

from sim.errors import ConfigError, nearest
from sim.specs.engine import EngineConfig

Params = Mapping[str, Any]
"""A candidate: values by knob. An engine argument of None is left to vLLM."""

REPLICAS = "replicas"
MOST_REPLICAS = 512
NOT_SEARCHED = ("quantization", "pipeline_parallel_size")  # another model; planned but not simulated
KNOBS = (*(entry.name for entry in fields(EngineConfig) if entry.name not in NOT_SEARCHED), REPLICAS)


@dataclass(frozen=True, slots=True)
class Condition:
    """Where all knobs of `when` have one of their values, the knobs of `only` take no others than theirs."""

    when: Mapping[str, tuple[Any, ...]]
    only: Mapping[str, tuple[Any, ...]]

    def allows(self, params: Params) -> bool:
        holds = all(params.get(name) in values for name, values in self.when.items())
        return not holds or all(params.get(name) in values for name, values in self.only.items())


@dataclass(frozen=True)
class Space:
    """Knobs in the order given, each with its values; `gpus` limits replicas x tensor_parallel_size.

    `fixed` names knobs that were left at vLLM's default, with the reason. Raises ConfigError for an unknown knob, a knob
    without values, a value given twice and a value that the engine argument does not take.
    """

    knobs: Mapping[str, tuple[Any, ...]]
    conditions: tuple[Condition, ...] = ()
    gpus: int | None = None
    fixed: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, values in self.knobs.items():
            check_knob(name, values)
        for condition in self.conditions:
            for name, values in (*condition.when.items(), *condition.only.items()):
                check_knob(name, values)
                self._check_is_free(name)
        if self.gpus is not None and self.gpus < 1:
            raise ConfigError(f"gpus must be at least 1, got {self.gpus}.")

    @property
    def size(self) -> int:
        """Combinations before conditions."""
        return math.prod(map(len, self.knobs.values()))

    def candidates(self) -> Iterator[dict[str, Any]]:
        """All combinations that the conditions allow, the last knob changing fastest."""
        for values in product(*self.knobs.values()):
            params = dict(zip(self.knobs, values, strict=True))
            if self.allows(params):
                yield params

    def allows(self, params: Params) -> bool:
        if not all(condition.allows(params) for condition in self.conditions):
            return False
        return self.gpus is None or num_gpus(params) <= self.gpus

    def without(self, fixed: Mapping[str, str]) -> "Space":
        """The space with some knobs left to vLLM, each for its reason."""
        knobs = {name: values for name, values in self.knobs.items() if name not in fixed}
        conditions = tuple(
            condition for condition in self.conditions if fixed.keys().isdisjoint((*condition.when, *condition.only))
        )
        return replace(self, knobs=knobs, conditions=conditions, fixed={**self.fixed, **fixed})

    def _check_is_free(self, name: str) -> None:
        if name not in self.knobs:
            raise ConfigError(f"a condition names {name}, which is no knob of the space; list it under knobs.")


def check_knob(name: str, values: Sequence[Any]) -> None:
    """Raises ConfigError, naming the knob and the value, unless each value is one the engine argument takes."""
    if name not in KNOBS:
        raise ConfigError(f"{name!r} is no knob; knobs are vLLM's engine arguments and replicas.{nearest(name, KNOBS)}")
    if not values:
        raise ConfigError(f"the knob {name} must have at least one value, got none.")
    if len({canonical(value) for value in values}) < len(values):
        raise ConfigError(f"the knob {name} must have each value once, got {list(values)!r}.")
    for value in values:
        _check_value(name, value)


def _check_value(name: str, value: Any) -> None:
    if name == REPLICAS:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_REPLICAS:
            raise ConfigError(f"replicas must be an integer from 1 to {MOST_REPLICAS}, got {value!r}.")
    else:
        engine_config(EngineConfig(), {name: value})


def engine_config(base: EngineConfig, params: Params) -> EngineConfig:
    """The engine arguments of a candidate; what it does not name comes from `base`, None is vLLM's default."""
    defaults = EngineConfig()
    changes = {name: getattr(defaults, name) if value is None else value for name, value in params.items()}
    changes.pop(REPLICAS, None)
    return replace(base, **changes)


def num_replicas(params: Params) -> int:
    return int(params.get(REPLICAS) or 1)


def num_gpus(params: Params, base: EngineConfig | None = None) -> int:
    """GPUs that a candidate takes."""
    ranks = params.get("tensor_parallel_size") or (base.tensor_parallel_size if base else 1)
    return num_replicas(params) * int(ranks)


def num_flags(engine: EngineConfig) -> int:
    """Flags that the `vllm serve` line of these arguments would have: the fewer, the simpler."""
    return len(engine.given)


def canonical(value: Any) -> str:
    """The same text for equal values, however they were written."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
