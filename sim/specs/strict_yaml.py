"""YAML and JSON files read against a pydantic schema: unknown keys are errors, and an error is one sentence with file and field."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from sim import inputs
from sim.errors import ProfileError, RunsError, nearest

SMALLEST, LARGEST = 1e-15, 1e15  # what no measured quantity of a server leaves, in whatever unit it is written
MOST = 2**53  # a count beyond it is a slip, and no float holds it exactly


def _within_reason(value: float) -> float:
    if value and not SMALLEST <= abs(value) <= LARGEST:
        raise ValueError(f"must be from {SMALLEST:g} to {LARGEST:g}")
    return value


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), AfterValidator(_within_reason)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), AfterValidator(_within_reason)]
Count = Annotated[int, Field(ge=1, le=MOST)]


class Strict(BaseModel):
    """Base of all file schemas: no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


SchemaT = TypeVar("SchemaT", bound=Strict)


def read_yaml(path: Path, schema: type[SchemaT]) -> SchemaT:
    """The file's content as `schema`. Raises ProfileError naming file, field and rule."""
    values = inputs.read_yaml(path, ProfileError)
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        raise ProfileError(f"{path}: {_first_problem(error, schema)}") from None


def read_json(path: Path, schema: type[SchemaT]) -> SchemaT:
    """The file's content as `schema`. Raises RunsError naming file, field and rule."""
    text = inputs.read_text(path, RunsError, most_bytes=inputs.MAX_JSON_BYTES, kind="JSON")
    inputs.parse_json(text, RunsError, str(path))
    try:
        return schema.model_validate_json(text)
    except ValidationError as error:
        raise RunsError(f"{path}: {_first_problem(error, schema)}") from None


def _first_problem(error: ValidationError, schema: type[Strict]) -> str:
    problem = error.errors()[0]
    field = ".".join(str(part) for part in problem["loc"])
    where = f"`{field}`" if field else "the file"
    if problem["type"] == "extra_forbidden":
        return f"{where} is not a known key.{nearest(str(problem['loc'][-1]), _keys(schema.model_json_schema()))}"
    if problem["type"] == "missing":
        return f"{where} is required but absent."
    rule = problem["msg"].removeprefix("Input ").removeprefix("Value error, ")
    return f"{where} {rule}, got {_short(problem['input'])}."


def _keys(json_schema: Mapping[str, Any]) -> Iterator[str]:
    yield from json_schema.get("properties", {})
    for definition in json_schema.get("$defs", {}).values():
        yield from definition.get("properties", {})


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
