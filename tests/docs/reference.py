"""The reference pages, made of what parses and runs: `python -m tests.docs.reference` writes them, test_reference.py compares.

Each page is a function of nothing but the code, so that an option, a field or a default that changes shows in the diff.
"""

import inspect
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pydantic import BaseModel
from typer.core import TyperGroup, TyperOption

import sim
from sim.cli.app import COMMANDS, _command
from sim.cli.engine_flags import EngineCommand
from sim.cluster.admission import AdmissionOptions, RecoveryOptions
from sim.cluster.autoscaling.table import AUTOSCALERS
from sim.cluster.cold_start import StartUp
from sim.cluster.deciders import DECIDERS
from sim.cluster.faults import DrawnFault, ScriptedFault
from sim.cluster.kv_pulls import PullOptions
from sim.cluster.kv_store import StoreOptions
from sim.cluster.routers.table import ROUTERS
from sim.measure.runs import ClosedLoop, Measured, OpenLoop, Requests, Run, TraceFile
from sim.report.profile_schema import schema_text
from sim.search.space_file import ConditionBlock, RangeBlock, SpaceFile
from sim.specs.autotuning import AutotuningParameters
from sim.specs.engine import ARGUMENTS, EngineConfig
from sim.specs.fleet_file import FleetFile, PoolBlock, TransferBlock
from sim.specs.serve_flags import ALIASES, APPROXIMATED, ENGINE_FLAGS, IGNORED, OTHER_FLAGS, SHORT_FLAGS, UNSIMULATED
from sim.steptime.linear import LinearFile
from sim.workload.bench_dataset import PARAMETERS
from sim.workload.native import COLUMNS, OPTIONAL
from sim.workload.spec import RANGES, WorkloadSpec

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"
MADE = "Written by `python -m tests.docs.reference` from the code.\n"
BOUNDS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
OF_FLAGS = """\
Names, values and defaults are vLLM's; `--vllm-version` chooses whose. From Python and in files they are fields of `EngineConfig`, with underscores.
An empty default is worked out at start-up from model, GPU and version, as vLLM does; a flag that a version does not have is refused for it.
"""
POLICIES: Mapping[str, Mapping[str, type[Any]]] = {"router": ROUTERS, "decider": DECIDERS, "autoscale": AUTOSCALERS}
OPTIONS: Mapping[str, type[Any]] = {
    "`start_up`": StartUp,
    "`faults`: those with a time": ScriptedFault,
    "`faults`: those that are drawn": DrawnFault,
    "`recovery`": RecoveryOptions,
    "`admission`": AdmissionOptions,
    "`kv_store`": StoreOptions,
    "`kv_pull`": PullOptions,
}
REQUIRED = frozenset(["at_s", "replica", "mtbf_s", "mttr_s"])
TYPES = {bool: "`true` or `false`", float: "number", int: "integer", str: "string", tuple: "list"}
LONG = re.compile(r"EngineConfig\([^()]+\)")
FUNCTION = re.compile(r"<function (\w+) at \w+>")
MODULE = re.compile(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z_])")


def pages() -> dict[str, str]:
    """Each page by its file's name."""
    with patch.dict(os.environ, COLUMNS="100"):
        made = {"commands.md": commands(), "vllm_flags.md": vllm_flags(), "files.md": files(), "python.md": python()}
    return {name: re.sub(r"\n{3,}", "\n\n", page).rstrip() + "\n" for name, page in made.items()}


def commands() -> str:
    found = "".join(command(f"servecast {name}", _command(name)) for name in COMMANDS)
    return (
        f"# Commands\n\n{MADE}\nEvery command that takes a model takes [vLLM's flags](vllm_flags.md) too, or a whole `vllm serve` line behind `--`. "
        f"An error is one sentence on stderr, with status 2.\n{found}"
    )


def command(name: str, made: Any) -> str:
    """Of typer's own objects; a group's commands one after the other."""
    if isinstance(made, TyperGroup):
        return "".join(command(f"{name} {inner}", other) for inner, other in made.commands.items())
    purpose = inspect.cleandoc(made.help or COMMANDS[name.removeprefix("servecast ")]).replace("\b", "")
    rows = [(spelled(one), one.help or "", values(one), preset(one)) for one in made.params if not one.hidden]
    also = "\n[vLLM's flags](vllm_flags.md) as well.\n" if isinstance(made, EngineCommand) else ""
    return f"\n## {name}\n\n{purpose}\n\n{table(('option', 'meaning', 'value', 'default'), rows)}{also}"


def spelled(one: Any) -> str:
    names = (*one.opts, *one.secondary_opts) if isinstance(one, TyperOption) else (one.metavar or one.name.upper(),)
    return ", ".join(f"`{name}`" for name in names)


def values(one: Any) -> str:
    """What stands behind it: one of a few words, or a type."""
    return "" if is_switch(one) else f"`{one.metavar}`" if one.metavar else code(one.type_descriptor.annotation)


def preset(one: Any) -> str:
    if one.required:
        return "required"
    return "" if is_switch(one) or callable(one.default) or one.default in (None, (), []) else f"`{one.default}`"


def is_switch(one: Any) -> bool:
    return isinstance(one, TyperOption) and one.is_flag


def vllm_flags() -> str:
    defaults = {entry.name: entry.default for entry in fields(EngineConfig)}
    engine = [
        (
            f"`--{flag.name}`",
            one_line(flag.argument.help),
            by_version(flag.argument.defaults, defaults[flag.field]),
            flag.argument.since or "",
        )
        for flag in ENGINE_FLAGS.values()
    ]
    without = [
        (f"`{name}`", one_line(made.help), by_version(made.defaults, defaults[name]), made.since or "")
        for name, made in ARGUMENTS.items()
        if not made.is_flag
    ]
    refused = [
        (f"`--{name}`", flag.what, ", ".join(f"`{value}`" for value in flag.harmless))
        for name, flag in UNSIMULATED.items()
    ]
    near = [(f"`--{name}`", holds) for name, (_, holds) in APPROXIMATED.items()]
    short = [(f"`-{name}`", f"`--{flag}`") for name, flag in SHORT_FLAGS.items()] + [
        (f"`--{name}`", f"`--{flag}`") for name, flag in ALIASES.items()
    ]
    return "\n".join(
        (
            f"# vLLM's flags\n\n{MADE}",
            OF_FLAGS,
            "## Simulated\n",
            table(("flag", "meaning", "default", "since vLLM"), engine),
            "\nRead by rules of their own: " + ", ".join(f"`--{name}`" for name in OTHER_FLAGS) + ".\n",
            "## Arguments that other flags set\n",
            table(("argument", "meaning", "default", "since vLLM"), without),
            "\n## Refused\n\nWhat they ask for is not simulated. A value that leaves it off is taken.\n",
            table(("flag", "what is not simulated", "taken"), refused),
            "\n## Taken without their effect\n\nA note says so.\n",
            table(("flag", "what holds instead"), near),
            "\n## Without any effect here\n\nNamed on stderr: they change neither schedule, memory nor times.\n",
            ", ".join(f"`--{name}`" for name in sorted(IGNORED)) + ".",
            "\n## Short forms\n",
            table(("short", "flag"), short),
        )
    )


def by_version(known: Mapping[str, Any], default: Any) -> str:
    if known:
        return ", ".join(f"`{value}` from {version}" if version else f"`{value}`" for version, value in known.items())
    return "" if default is None else f"`{default}`"


def files() -> str:
    native = [(f"`{name}`", "required") for name in COLUMNS] + [(f"`{name}`", "optional") for name in OPTIONAL]
    return "\n".join(
        (
            f"# File formats\n\n{MADE}",
            "Unknown keys are errors, and an error names file, key, rule and value.\n",
            "## Trace columns\n\nCSV, JSON lines or Parquet; [what each means](../bundled_traces.md#the-native-format), and [the formats that are read beside it](../traces.md).\n",
            table(("column", "must it be there"), native),
            "\n## Workload\n\n[What each means](../workloads.md#a-file). Beside them a file may have `clients`, `autotuning`, or `dataset_name` with "
            + ", ".join(f"`{name}`" for name in PARAMETERS)
            + ".\n",
            table(("key", "type", "default", "from, to"), workload()),
            "\n## Fleet\n\n[Pools](../fleet.md#pools-of-unlike-replicas), and [what changes](../changing_fleets.md).\n",
            schema(FleetFile),
            "\n### Each of `pools`\n",
            schema(PoolBlock),
            "\n### `transfer`\n",
            schema(TransferBlock),
            *sections(),
            "\n## Search space\n\n[How it is searched](../optimizer.md#what-is-searched).\n",
            schema(SpaceFile),
            "\n### A range\n",
            schema(RangeBlock, {"start": "from"}),
            "\n### Each of `conditions`\n",
            schema(ConditionBlock),
            "\n## GPU\n\n[A profile in ten lines](../gpus.md#a-profile-in-ten-lines).\n",
            f"```text\n{schema_text()}\n```",
            "\n## Step times\n\n`--step-time-model`.\n",
            schema(LinearFile),
            "\n## Measured runs\n\n[The format](../accuracy.md#the-file-format); each of `runs`:\n",
            schema(Run),
            *(
                f"\n### {made.__name__}\n\n{schema(made)}"
                for made in (OpenLoop, ClosedLoop, TraceFile, Requests, Measured)
            ),
            "\n## Autotuning parameters\n\nThe constants of the [autotuning design](../seeds.md#the-autotuning-specification).\n",
            table(
                ("key", "type", "default"),
                ((f"`{one.name}`", code(one.type), default_of(one)) for one in fields(AutotuningParameters)),
            ),
        )
    )


def workload() -> Iterator[tuple[str, ...]]:
    for one in fields(WorkloadSpec):
        least, most = RANGES.get(one.name, ("", ""))
        bounds = f"{least:,} to {most:,}" if one.name in RANGES else ""
        yield f"`{one.name}`", code(one.type), default_of(one), bounds


def sections() -> Iterator[str]:
    """Sections of a fleet file that have options, and policies of which each has its own."""
    yield "\nUnits stand at the ends of names: `_s` seconds, `_ms` milliseconds, `_us` microseconds, `_gib` GiB. A policy is a name, `name:option=value,...`, or `{policy: name, option: value}`."
    for name, policies in POLICIES.items():
        yield f"\n### `{name}`: policies\n"
        yield from (f"\n#### `{policy}`\n\n{options(made)}" for policy, made in policies.items())
    for name, made in OPTIONS.items():
        yield f"\n### {name}\n\n{options(made)}"


def options(made: type[Any]) -> str:
    """What it is, and its options by the rules that they are held to."""
    rows = [
        (f"`{one.name}`", rule(one), "required" if one.name in REQUIRED else default_of(one)) for one in fields(made)
    ]
    about = "" if (made.__doc__ or "").startswith(f"{made.__name__}(") else inspect.cleandoc(made.__doc__ or "")
    return f"{about}\n\n" + (table(("option", "value", "default"), rows) if rows else "No options.\n")


def rule(one: Field[Any]) -> str:
    """Its type and range, or the words to choose from."""
    if words := one.metadata["choices"]:
        return ", ".join(f"`{word}`" for word in words)
    ends = (("from", one.metadata["at_least"]), ("to", one.metadata["at_most"]))
    return " ".join((TYPES[one.metadata["kind"]], *(f"{word} {end:,}" for word, end in ends if end is not None)))


def schema(made: type[BaseModel], renamed: Mapping[str, str] = types.MappingProxyType({})) -> str:
    """A model's keys, as its own JSON Schema has them."""
    whole = made.model_json_schema()
    required = whole.get("required", ())
    rows = [
        (f"`{renamed.get(name, name)}`", kind(one), "required" if name in required else standing(one.get("default")))
        for name, one in whole["properties"].items()
    ]
    return table(("key", "value", "default"), rows)


def kind(one: Mapping[str, Any]) -> str:
    """What a JSON Schema allows, in words."""
    if choices := one.get("anyOf") or one.get("oneOf"):
        return " or ".join(dict.fromkeys(kind(each) for each in choices if each.get("type") != "null"))
    if words := one.get("enum") or ([one["const"]] if "const" in one else []):
        return ", ".join(f"`{word}`" for word in words)
    if "$ref" in one:
        return f"`{one['$ref'].rpartition('/')[2]}`"
    if one.get("type") == "array":
        return f"list of {kind(one.get('items', {}))}"
    if one.get("type") == "object":
        return (
            f"mapping of {kind(one['additionalProperties'])}"
            if isinstance(one.get("additionalProperties"), dict)
            else "mapping"
        )
    bounds = [f"{word} {one[key]:,}" for key, word in BOUNDS.items() if key in one]
    return " ".join((one.get("type", "any"), *bounds))


def default_of(one: Field[Any]) -> str:
    """Of a dataclass, in its written form."""
    return standing(None if one.default is MISSING else one.default)


def standing(default: object) -> str:
    return "" if default in (None, "", ()) else f"`{default}`"


def python() -> str:
    return f"# Python\n\n{MADE}\n`import sim`; these are its public names.\n" + "".join(
        entry(name, getattr(sim, name)) for name in sim.__all__
    )


def entry(name: str, made: Any) -> str:
    own = inspect.cleandoc(made.__doc__ or "")
    methods = [
        f"- `{each}{signature(method)}`" + (f": {said.splitlines()[0]}" if (said := inspect.getdoc(method)) else "")
        for each, method in vars(made).items()
        if not each.startswith("_") and inspect.isfunction(method)
    ]
    return f"\n## {name}\n\n```text\n{name}{signature(made, wide=True)}\n```\n\n{own}\n" + (
        "\n" + "\n".join(methods) + "\n" if methods else ""
    )


def signature(made: Callable[..., Any], *, wide: bool = False) -> str:
    try:
        taken = inspect.signature(made)
    except ValueError:
        return ""
    parts = [
        LONG.sub("EngineConfig()", FUNCTION.sub(r"\1", MODULE.sub("", str(one))))
        for one in taken.parameters.values()
        if one.name != "self"
    ]
    line = f"({', '.join(parts)})"
    return "(\n    " + ",\n    ".join(parts) + ",\n)" if wide and len(line) > 100 else line


def code(value: Any) -> str:
    """A type or a value, without the modules that its names come from."""
    if typing.get_origin(value) is typing.Literal:
        return ", ".join(f"`{word}`" for word in typing.get_args(value))
    shown = (
        value
        if isinstance(value, str)
        else value.__name__
        if isinstance(value, type) and not typing.get_args(value)
        else repr(value)
    )
    return f"`{MODULE.sub('', shown)}`"


def one_line(text: str) -> str:
    return " ".join(text.split())


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *(tuple(one_line(cell).replace("|", "\\|") for cell in row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, page in pages().items():
        FOLDER.joinpath(name).write_text(page, encoding="utf-8")
