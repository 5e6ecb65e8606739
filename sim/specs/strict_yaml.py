"""YAML and JSON files read against a pydantic schema: unknown keys are errors, and an error is one sentence with file and field."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from sim import inputs
from sim.errors import ProfileError, RunsError, SimError, listed, nearest

MOST = 2**53  # a count beyond it is a slip, and no float holds it exactly


def _within_reason(value: float) -> float:
    if not inputs.is_sane(value):
        raise ValueError(f"must be from {inputs.SMALLEST:g} to {inputs.LARGEST:g}")
    return value


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), AfterValidator(_within_reason)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), AfterValidator(_within_reason)]
Finite = Annotated[float, Field(allow_inf_nan=False), AfterValidator(_within_reason)]
Count = Annotated[int, Field(ge=1, le=MOST)]


class Strict(BaseModel):
    """Base of all file schemas: no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


SchemaT = TypeVar("SchemaT", bound=Strict)


def read_yaml(path: Path, schema: type[SchemaT]) -> SchemaT:
    """The file's content as `schema`. Raises ProfileError naming file, field and rule."""
    return checked(inputs.read_yaml(path, ProfileError), schema, path)


def checked(values: Any, schema: type[SchemaT], path: Path | str, raised: type[SimError] = ProfileError) -> SchemaT:
    """What was read from `path` as `schema`; raises as `read_yaml`."""
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        raise raised(f"{path}: {_first_problem(error, schema)}") from None


def read_json(path: Path, schema: type[SchemaT]) -> SchemaT:
    """The file's content as `schema`. Raises RunsError naming file, field and rule."""
    text = inputs.read_text(path, RunsError, most_bytes=inputs.MAX_JSON_BYTES, kind="JSON")
    inputs.parse_json(text, RunsError, str(path))
    try:
        return schema.model_validate_json(text)
    except ValidationError as error:
        raise RunsError(f"{path}: {_first_problem(error, schema)}") from None


def _first_problem(error: ValidationError, schema: type[Strict]) -> str:
    """All keys that are absent, for they are added in one go, and the first that is unknown; else the first problem."""
    problems = error.errors()
    absent = [_where(problem) for problem in problems if problem["type"] == "missing"]
    unknown = next((problem for problem in problems if problem["type"] == "extra_forbidden"), None)
    if absent:
        sentence = f"{listed(absent)} {'are' if len(absent) > 1 else 'is'} required but absent."
        return f"{sentence} {_unknown(unknown, schema)}" if unknown else sentence
    problem = problems[0]
    if problem["type"] == "extra_forbidden":
        return _unknown(problem, schema)
    where = _where(problem)
    return f"{where} {_rule(problem)}, got {_short(problem['input'])}."


def _rule(problem: ErrorDetails) -> str:
    """In the words of who writes the file: no class of ours, no step of pydantic's."""
    if problem["type"] in {"model_type", "dict_type"}:
        return "should be a mapping of keys to values"
    rule = problem["msg"].removeprefix("Input ").removeprefix("Value error, ").removeprefix("List ")
    return rule.partition(" after validation")[0]


def _where(problem: ErrorDetails) -> str:
    field = ".".join(str(part) for part in problem["loc"])
    return f"`{field}`" if field else "the file"


def _unknown(problem: ErrorDetails, schema: type[Strict]) -> str:
    hint = nearest(str(problem["loc"][-1]), _keys(schema.model_json_schema()))
    return f"{_where(problem)} is not a known key.{hint}"


def _keys(json_schema: Mapping[str, Any]) -> Iterator[str]:
    yield from json_schema.get("properties", {})
    for definition in json_schema.get("$defs", {}).values():
        yield from definition.get("properties", {})


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
