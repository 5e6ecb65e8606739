"""Text that comes from outside, read within limits: no file can use up the memory, the stack or an hour of time.

YAML is that of PyYAML's safe loader without dates, whose tags beyond numbers, texts, lists and mappings are refused, and
with the numbers of YAML 1.2 (`1e-5`). JSON is Python's, so NaN and infinities are read; callers check them.
"""

import json
import re
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, NoReturn

import yaml

from sim.errors import SimError
from sim.units import MIB

MAX_YAML_BYTES = MIB  # settings that people write; the largest profile has 10 KB
MAX_JSON_BYTES = 1024 * MIB  # measured runs with every gap between tokens
MAX_DEPTH = 100
TOO_DEEP = f"values must not be nested deeper than {MAX_DEPTH} levels"
LIBYAML_TOO_DEEP = "exceeded maximum nesting depth"  # some releases have a limit of their own, before any event
MAX_NODES = 100_000  # of a YAML file, each alias counted as all that it stands for
MAX_INTEGER = 2**63 - 1
MAX_DIGITS = len(str(MAX_INTEGER)) + 1  # and a sign
SMALLEST, LARGEST = 1e-15, 1e15  # what no measured quantity of a server leaves, in whatever unit it is written
_FIRST_BYTES = 65_536
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def is_sane(value: float) -> bool:
    """Whether it is 0 or of a size that a quantity can have: products of several such stay finite and above 0."""
    return value == 0 or SMALLEST <= abs(value) <= LARGEST


def read_text(path: Path, error: type[SimError], *, most_bytes: int, kind: str = "text") -> str:
    """The text of a UTF-8 file of that `kind`. Raises `error` where it is unreadable, binary or larger than `most_bytes`."""
    try:
        with path.open("rb") as file:
            data = file.read(_FIRST_BYTES)
            if b"\0" not in data:
                data += file.read(most_bytes + 1 - len(data))
        if len(data) > most_bytes:
            raise error(f"{path}: must be a {kind} file of at most {most_bytes // MIB:,} MiB, got a larger one.")
        if b"\0" in data:
            raise error(f"{path}: must be a {kind} file, got binary content.")
        return data.decode("utf-8-sig")
    except OSError as problem:
        raise error(f"{path}: cannot be read ({problem.strerror}).") from None
    except UnicodeDecodeError:
        raise error(f"{path}: must be a {kind} file in UTF-8, got binary content.") from None
    except ValueError:
        raise error(f"{str(path)!r}: is no name of a file.") from None


def is_there(path: Path, what: Callable[[Path], bool] = Path.exists) -> bool:
    """Whether `path` is `what`; no for a name that is too long, and for what stands in a folder that may not be entered."""
    try:
        return what(path)
    except (OSError, ValueError):
        return False


def read_json(path: Path, error: type[SimError], *, most_bytes: int = MAX_JSON_BYTES) -> Any:
    """The value in a JSON file. Raises `error` with file, line and rule."""
    return parse_json(read_text(path, error, most_bytes=most_bytes, kind="JSON"), error, str(path))


def parse_json(text: str, error: type[SimError], where: str) -> Any:
    """The value of a JSON text; `where` begins the sentence of `error`, which is raised for what is not sound JSON."""
    try:
        value = json.loads(text, parse_int=_integer)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as problem:
        place = f"line {problem.lineno}, column {problem.colno}"
        raise error(f"{where}: is not valid JSON: {problem.msg} at {place}.") from None
    except RecursionError:
        raise error(f"{where}: must not be nested deeper than {MAX_DEPTH} levels.") from None
    except UnicodeEncodeError:
        raise error(f"{where}: must have whole characters, got half of a surrogate pair such as \\ud83d.") from None
    except OverflowError as problem:
        raise error(f"{where}: must have integers of at most 64 bits, got {problem}.") from None
    if not _is_shallow(value):
        raise error(f"{where}: must not be nested deeper than {MAX_DEPTH} levels.")
    return value


def _integer(digits: str) -> int:
    """Raises OverflowError with the digits, or some of them, where they are more than 64 bits."""
    if len(digits) > MAX_DIGITS or abs(value := int(digits)) > MAX_INTEGER:
        raise OverflowError(digits if len(digits) <= 2 * MAX_DIGITS else f"one of {len(digits):,} digits")
    return value


def _is_shallow(value: Any) -> bool:
    """Level by level, as a walk into the depth would itself need a deep stack."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return True
    return False


def read_yaml(path: Path, error: type[SimError]) -> Any:
    """The value in a YAML file. Raises `error` with file, line and rule."""
    return parse_yaml(read_text(path, error, most_bytes=MAX_YAML_BYTES, kind="YAML"), error, str(path))


def parse_yaml(text: str, error: type[SimError], where: str) -> Any:
    """The value of a YAML text; `where` begins the sentence of `error`, which is raised for what breaks a limit or a rule."""
    try:
        _check_extent(text)
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        what = ", ".join(part for part in (problem.context, problem.problem) if part)
        if LIBYAML_TOO_DEEP in what:
            what = TOO_DEEP
        raise error(f"{where}: is not valid YAML: {' '.join(what.split())}{place}.") from None
    except yaml.YAMLError as problem:
        raise error(f"{where}: is not valid YAML: {' '.join(str(problem).split())}.") from None


def _check_extent(text: str) -> None:
    """Raises YAMLError for a document that is too deep or, its aliases written out, too large; before anything is built."""
    anchored: dict[str, tuple[int, int]] = {}  # nodes and levels
    opened: list[tuple[str | None, int, int]] = [(None, 0, 0)]
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, 1, 1))
            anchor, nodes, levels = None, 0, 0
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, nodes, levels = opened.pop()
        elif isinstance(event, yaml.AliasEvent):
            anchor, (nodes, levels) = (
                None,
                anchored.get(event.anchor or "") or _refuse("an alias must name what stands complete before it", event),
            )
        elif isinstance(event, yaml.ScalarEvent):
            anchor, nodes, levels = event.anchor, 1, 0
        else:
            continue
        if anchor:
            anchored[anchor] = (nodes, levels)
        outer, nodes_before, levels_before = opened[-1]
        opened[-1] = (outer, nodes_before + nodes, max(levels_before, levels + 1))
        if len(opened) + levels > MAX_DEPTH:
            _refuse(TOO_DEEP, event)
        if nodes_before + nodes > MAX_NODES:
            _refuse(f"there must not be more than {MAX_NODES:,} values, those of aliases included", event)


def _refuse(rule: str, event: Any) -> NoReturn:
    raise yaml.MarkedYAMLError(problem=rule, problem_mark=event.start_mark)


_TAG = "tag:yaml.org,2002:"


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML's safe loader, in C where libyaml is there, which also refuses a key given twice and integers beyond 64 bits."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._checked: set[yaml.Node] = set()

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except (ValueError, LookupError):  # `!!int abc`, `!!bool x`
            value = None
            self._fail(f"the value is no readable {node.tag.rpartition(':')[2]}, got {str(node.value)[:40]!r}", node)
        if isinstance(value, int) and not -MAX_INTEGER <= value <= MAX_INTEGER:
            self._fail(f"an integer must have at most 64 bits, got {str(node.value)[:40]}", node)
        return value

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merges what `<<` names; a mapping that is merged comes here several times, the first time as it was written."""
        if node not in self._checked:
            self._checked.add(node)
            self._check_keys(node)
        super().flatten_mapping(node)

    def _check_keys(self, node: yaml.MappingNode) -> None:
        known = set()
        for key_node, _ in node.value:
            if key_node.tag == f"{_TAG}merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                self._fail("a key must be a number or a text", key_node)
            if key in known:
                self._fail("a key is given twice", key_node)
            known.add(key)

    def _fail(self, rule: str, node: yaml.Node) -> NoReturn:
        raise yaml.constructor.ConstructorError(problem=rule, problem_mark=node.start_mark)


_PLAIN = {f"{_TAG}{kind}" for kind in ("null", "bool", "int", "float", "str", "seq", "map")} | {None}
_Loader.yaml_constructors = {
    tag: construct for tag, construct in yaml.SafeLoader.yaml_constructors.items() if tag in _PLAIN
}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if tag != f"{_TAG}timestamp"]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    f"{_TAG}float", re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)[eE][-+]?\d+$", re.ASCII), list("-+.0123456789")
)
