"""YAML and JSON files read against a pydantic schema: unknown keys are errors, and an error is one sentence with file and field."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from sim.errors import ProfileError, RunsError, nearest


class Strict(BaseModel):
    """Base of all file schemas: no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


SchemaT = TypeVar("SchemaT", bound=Strict)


def read_yaml(path: Path, schema: type[SchemaT]) -> SchemaT:
    """The file's content as `schema`. Raises ProfileError naming file, field and rule."""
    try:
        return schema.model_validate(_parse(path))
    except ValidationError as error:
        raise ProfileError(f"{path}: {_first_problem(error, schema)}") from None


def read_json(path: Path, schema: type[SchemaT]) -> SchemaT:
    """The file's content as `schema`. Raises RunsError naming file, field and rule."""
    try:
        return schema.model_validate_json(path.read_bytes())
    except OSError as error:
        raise RunsError(f"{path}: cannot be read ({error.strerror}).") from None
    except ValidationError as error:
        raise RunsError(f"{path}: {_first_problem(error, schema)}") from None


def _parse(path: Path) -> Any:
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise ProfileError(f"{path}: must be a YAML file, got binary content.") from None
    except yaml.YAMLError as error:
        raise ProfileError(f"{path}: is not valid YAML: {' '.join(str(error).split())}.") from None


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML's safe loader, in C where libyaml is there, which also refuses a key given twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            raise yaml.constructor.ConstructorError(None, None, "a key is given twice", node.start_mark)
        return mapping


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
