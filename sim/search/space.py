"""Which configurations are candidates: knobs with their values and the conditions between them, also as a YAML file."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import Discriminator, Tag, model_validator

from sim.cluster.routers.table import router_options
from sim.errors import ConfigError, nearest
from sim.specs.engine import EngineConfig
from sim.specs.fleet_file import MOST_REPLICAS
from sim.specs.strict_yaml import Finite, Strict, read_yaml

Params = Mapping[str, Any]
"""A candidate: values by knob. An engine argument of None is left to vLLM."""

REPLICAS = "replicas"
ROUTER = "router"
FLEET = (REPLICAS, ROUTER)
NOT_SEARCHED = ("quantization", "pipeline_parallel_size")  # another model; planned but not simulated
KNOBS = (*(entry.name for entry in fields(EngineConfig) if entry.name not in NOT_SEARCHED), *FLEET)


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
        """Number of combinations, including those that conditions forbid."""
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
        """The space without some knobs, which are left to vLLM; `fixed` has the reasons by knob."""
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
        raise ConfigError(
            f"{name!r} is no knob; knobs are vLLM's engine arguments, replicas and router.{nearest(name, KNOBS)}"
        )
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
    elif name == ROUTER:
        if not isinstance(value, str):
            raise ConfigError(f"router must be a name such as llm_d, or llm_d:queue=2, got {value!r}.")
        router_options(value)
    else:
        engine_config(EngineConfig(), {name: value})


def engine_config(base: EngineConfig, params: Params) -> EngineConfig:
    """The engine arguments of a candidate: from `base` where it does not name them, vLLM's default where its value is None."""
    arguments = {name: value for name, value in params.items() if name not in FLEET}
    defaults = EngineConfig()
    return replace(
        base, **{name: getattr(defaults, name) if value is None else value for name, value in arguments.items()}
    )


def num_replicas(params: Params) -> int:
    return int(params.get(REPLICAS) or 1)


def num_gpus(params: Params, base: EngineConfig | None = None) -> int:
    """GPUs of all replicas of a candidate."""
    ranks = params.get("tensor_parallel_size") or (base.tensor_parallel_size if base else 1)
    return num_replicas(params) * int(ranks)


def num_flags(engine: EngineConfig) -> int:
    """Number of flags in the `vllm serve` line of these arguments."""
    return len(engine.given)


def canonical(value: Any) -> str:
    """JSON text that is equal for equal values, whatever the order of keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


MAX_VALUES = 1000


class RangeBlock(Strict):
    """`{from: 64, to: 1024, factor: 2}` or `{from: 0.8, to: 0.95, step: 0.05}`, both ends included."""

    start: Finite | int
    to: Finite | int
    step: Finite | int | None = None
    factor: Finite | int | None = None

    @model_validator(mode="before")
    @classmethod
    def _named_from(cls, block: Any) -> Any:
        """Rename `from`, which cannot be the name of a field in Python."""
        if isinstance(block, Mapping):
            return {"start" if key == "from" else key: value for key, value in block.items()}
        return block

    @model_validator(mode="after")
    def _grows(self) -> "RangeBlock":
        if (self.step is None) == (self.factor is None):
            raise ValueError("must have either a step or a factor")
        if self.to < self.start:
            raise ValueError("must end at or above its start")
        if self.step is not None and self.step <= 0:
            raise ValueError("must have a step above 0")
        if self.factor is not None and (self.factor <= 1 or self.start <= 0):
            raise ValueError("must have a factor above 1 and start above 0")
        return self

    def values(self) -> tuple[float | int, ...]:
        """The values of the range, each computed from the start, so that rounding errors do not add up."""
        if self.step is not None:
            count = math.floor((self.to - self.start) / self.step + 1e-9) + 1
            found = [self.start + index * self.step for index in range(min(count, MAX_VALUES + 1))]
        else:
            assert self.factor is not None, "the validator demands one of the two"
            count = math.floor(math.log(self.to / self.start, self.factor) + 1e-9) + 1
            found = [self.start * self.factor**index for index in range(min(count, MAX_VALUES + 1))]
        return tuple(round(value, 9) if isinstance(value, float) else value for value in found)


class ConditionBlock(Strict):
    """`{when: {enforce_eager: true}, only: {cudagraph_capture_sizes: null}}`; one value or a list of them."""

    when: dict[str, Any]
    only: dict[str, Any]


def _kind(given: Any) -> str:
    """Whether an entry of a knob is a range or a list, so that an error message speaks of only one of them."""
    return "range" if isinstance(given, Mapping | RangeBlock) else "values"


Values = Annotated[
    Annotated[list[Any], Tag("values")] | Annotated[RangeBlock, Tag("range")],
    Discriminator(_kind),
]


class SpaceFile(Strict):
    """The YAML of a search space; a file with knobs alone needs no `knobs` heading."""

    knobs: dict[str, Values]
    conditions: list[ConditionBlock] | None = None
    gpus: int | None = None

    @model_validator(mode="before")
    @classmethod
    def _knobs_alone(cls, file: Any) -> Any:
        if isinstance(file, Mapping) and cls.model_fields.keys().isdisjoint(file):
            return {"knobs": file}
        return file


def read_space(path: Path) -> Space:
    """The space in a YAML file. Raises SimError naming file, knob and rule."""
    file = read_yaml(path, SpaceFile)
    try:
        return Space(
            {name: _values(name, given) for name, given in file.knobs.items()},
            tuple(Condition(_sets(block.when), _sets(block.only)) for block in file.conditions or ()),
            file.gpus,
        )
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _values(name: str, given: list[Any] | RangeBlock) -> tuple[Any, ...]:
    if isinstance(given, list):
        return tuple(map(_value, given))
    values = given.values()
    if len(values) > MAX_VALUES:
        raise ConfigError(f"the range of {name} must have at most {MAX_VALUES} values; use a larger step or factor.")
    return values


def _sets(block: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {name: _values(name, given if isinstance(given, list) else [given]) for name, given in block.items()}


def _value(given: Any) -> Any:
    """Capture sizes are lists in YAML and tuples in the engine arguments."""
    return tuple(given) if isinstance(given, list) else given
