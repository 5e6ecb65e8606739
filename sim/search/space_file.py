"""A search space as a YAML file."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Discriminator, Tag, model_validator

from sim.errors import ConfigError
from sim.inputs import parse_yaml
from sim.search.blueprint import Blueprint
from sim.search.space import Condition, Space
from sim.specs.strict_yaml import Finite, Strict, read_yaml

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


def read_space(path: Path, over: Blueprint | None = None) -> Space:
    """The space over a blueprint in a YAML file. Raises SimError naming file, knob and rule."""
    file = read_yaml(path, SpaceFile)
    try:
        return Space(
            {name: _values(name, given) for name, given in file.knobs.items()},
            tuple(Condition(_sets(block.when), _sets(block.only)) for block in file.conditions or ()),
            file.gpus,
            over=over or Blueprint(),
        )
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse_knob(text: str) -> tuple[str, tuple[Any, ...]]:
    """A knob and its values, as in `kv_cache_dtype=null,fp8`; the values are those of a YAML list. Raises ConfigError."""
    name, _, values = text.partition("=")
    if not (name and values):
        raise ConfigError(f"--knob is a knob and its values, as in kv_cache_dtype=null,fp8, got {text!r}.")
    return name, parse_values(f"--knob {name}", values)


def parse_values(where: str, values: str) -> tuple[Any, ...]:
    """Values with commas between them, as in a YAML list; `where` begins the sentence of the ConfigError for other text."""
    return tuple(map(_value, parse_yaml(f"[{values}]", ConfigError, where)))


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
