"""Workloads as YAML: the fields of a `WorkloadSpec`, lengths and waits in their written forms, classes of clients in a list."""

import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from sim.errors import TraceError, listed
from sim.inputs import MAX_YAML_BYTES, parse_yaml, read_text
from sim.workload.arrivals import Gamma
from sim.workload.autotuning import Autotuning, read_autotuning
from sim.workload.bench_dataset import PARAMETERS, dataset_fields
from sim.workload.columns import show
from sim.workload.lengths import Choice, Fixed, Histogram
from sim.workload.rate_curve import Diurnal, Piece, Pieces, RampUp, Spike, Stages
from sim.workload.source import yaml_text
from sim.workload.spec import Workload, WorkloadMix, WorkloadSpec, shared_out
from sim.workload.spec_values import (
    Place,
    check_keys,
    read_arrivals,
    read_counts,
    read_flag,
    read_integer,
    read_lengths,
    read_name,
    read_names,
    read_number,
    read_ramp_up,
    read_rate,
    read_slos,
    read_spikes,
    read_waits,
)
from sim.workload.waits import FixedWait

FORMAT = "workload spec"
FIRST_KEY = re.compile(rb"\A(?:\xef\xbb\xbf)?(?:[ \t]*(?:#[^\n]*|---[ \t]*)?\r?\n)*[a-z_]+:\s")
RAMP_UP = tuple(one.name for one in fields(RampUp))
BENCH = ("dataset_name", "burstiness", "num_prompts", *RAMP_UP, *PARAMETERS)
"""What `vllm bench serve` calls it, beside the names of the fields."""


@dataclass(frozen=True, slots=True)
class SpecFile:
    """A workload, and what the file says of it under `autotuning`."""

    workload: Workload
    autotuning: Autotuning | None = None


def is_spec(stream: io.BufferedReader) -> bool:
    """Whether a stream begins with a key of a YAML file, as no rows of a trace do."""
    return FIRST_KEY.match(stream.peek(1)) is not None


def read_stream(stream: io.BufferedReader, name: str) -> Workload:
    """The workload that a stream holds; files of lengths lie in the folder that its name says. Raises as `read_spec`."""
    return parse_spec(yaml_text(stream, name), name, Path(name).parent).workload


def read_spec(path: Path) -> SpecFile:
    """The workload in a YAML file. Raises TraceError with file, field, rule and value."""
    text = read_text(path, TraceError, most_bytes=MAX_YAML_BYTES, kind="YAML")
    return parse_spec(text, str(path), path.parent)


def parse_spec(text: str, name: str, folder: Path) -> SpecFile:
    """The same from its text; files of lengths lie in `folder`."""
    values, place = parse_yaml(text, TraceError, name), Place(name)
    if not isinstance(values, Mapping):
        raise place.fault(f"a workload must be a mapping of keys to values, got {show(values)}.")
    check_keys(values, KEYS, place)
    common = {key: value for key, value in values.items() if key in SPEC_KEYS}
    autotuning = read_autotuning(values["autotuning"], place.under("autotuning")) if "autotuning" in values else None
    if "clients" in values:
        return SpecFile(_mix(common, values["clients"], place, folder), autotuning)
    _check_needs(common, place)
    return SpecFile(_spec(common, place, folder), autotuning)


def to_yaml(workload: Workload) -> str:
    """The text of a file that is read as this workload."""
    if isinstance(workload, WorkloadSpec):
        return "\n".join([*_lines(workload), ""])
    clients = ["  - " + "\n    ".join(_lines(client)) for client in workload.clients]
    return "\n".join(["clients:", *clients, ""])


def _lines(spec: WorkloadSpec) -> list[str]:
    """A field a line; of a workload that is all defaults the first."""
    values = _written(spec) or {"request_rate": spec.request_rate}
    return [
        f"{name}: {yaml.safe_dump([value], default_flow_style=True, sort_keys=False, width=MAX_YAML_BYTES)[1:-2]}"
        for name, value in values.items()
    ]


def changed(spec: WorkloadSpec, values: dict[str, Any]) -> WorkloadSpec:
    """The same with some fields changed; what says how long it is takes the other's place."""
    kept = {one.name: getattr(spec, one.name) for one in fields(spec)}
    for one, other in (("num_requests", "duration_s"), ("duration_s", "num_requests")):
        if one in values:
            kept[other] = None
    return WorkloadSpec(**kept | values)


def _mix(common: Mapping[str, Any], clients: Any, place: Place, folder: Path) -> WorkloadMix:
    place = place.under("clients")
    if not isinstance(clients, list) or not clients or not all(isinstance(client, Mapping) for client in clients):
        raise place.fault("must be a list of mappings, one for each class of clients.")
    for number, client in enumerate(clients):
        check_keys(client, (*SPEC_KEYS, "share"), place.under(number))
    shares = [_share(client, common, place.under(number)) for number, client in enumerate(clients)]
    whole = _spec(common, Place(place.file), folder)
    with_share = [share for share in shares if share is not None]
    parts = iter(shared_out(whole, with_share) if with_share else ())
    specs = []
    for number, (client, share) in enumerate(zip(clients, shares, strict=True)):
        own = {key: value for key, value in client.items() if key != "share"}
        base = whole if share is None else next(parts)
        _check_needs(own, place.under(number), base)
        specs.append(_spec(own, place.under(number), folder, base))
    with place.blamed():
        return WorkloadMix(tuple(specs))


def _share(client: Mapping[str, Any], common: Mapping[str, Any], place: Place) -> float | None:
    """Its share of the requests above, or None where it has a rate of its own."""
    if ("share" in client) == ("request_rate" in client):
        raise place.fault("a class of clients must have a `share` of the requests, or a `request_rate` of its own.")
    if "share" not in client:
        if "duration_s" not in common and not {"duration_s", "num_requests"} & client.keys():
            raise place.fault(
                "a class with a `request_rate` of its own must say how long it comes; give `duration_s`, here or above `clients`."
            )
        return None
    if twice := {"num_requests", "num_prompts", "duration_s"} & client.keys():
        raise place.fault(
            f"`{min(twice)}` of a class with a `share` follows from it; leave it out, or give it above `clients`."
        )
    share = read_number(client["share"], place.under("share"))
    if not 0 < share <= 1e6:
        raise place.under("share").fault(f"must be above 0 and at most a million, got {share:g}.")
    return share


def _spec(values: Mapping[str, Any], place: Place, folder: Path, base: WorkloadSpec | None = None) -> WorkloadSpec:
    """A workload with these fields, the others those of `base`."""
    check_keys(values, SPEC_KEYS, place)
    found = _bench_fields(values, place)
    for key, value in values.items():
        if key in READERS:
            found[key] = READERS[key](value, place.under(key), folder)
    with place.blamed():
        return changed(base or WorkloadSpec(), found)


def _check_needs(values: Mapping[str, Any], place: Place, base: WorkloadSpec | None = None) -> None:
    """Raises TraceError for a key that changes nothing without another."""
    given = {
        key
        for key in SPEC_KEYS
        if key in values or (base and key in _DEFAULTS and getattr(base, key) != _DEFAULTS[key])
    }
    for key, needed in NEEDS.items():
        if key in values and given.isdisjoint(needed):
            raise place.under(key).fault(
                f"changes nothing without {listed([f'`{need}`' for need in needed], 'or')}; leave it out."
            )


def _bench_fields(values: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """The fields that vLLM's benchmark has other names for."""
    given = {key: value for key, value in values.items() if key in PARAMETERS}
    found: dict[str, Any] = {}
    if "dataset_name" in values:
        with place.blamed():
            found |= dataset_fields(str(values["dataset_name"]), given)
    elif given:
        raise place.fault(f"`{min(given)}` is a parameter of a dataset; give its `dataset_name`.")
    if "num_prompts" in values:
        found["num_requests"] = read_integer(values["num_prompts"], place.under("num_prompts"))
    if "burstiness" in values:
        with place.under("burstiness").blamed():
            found["arrivals"] = Gamma(read_number(values["burstiness"], place.under("burstiness")))
    if ramp := {key: values[key] for key in RAMP_UP if key in values}:
        found["request_rate"] = read_ramp_up(ramp, place)
    twice = {"num_prompts": "num_requests", "burstiness": "arrivals"} | dict.fromkeys(RAMP_UP, "request_rate")
    for bench, ours in twice.items():
        if bench in values and ours in values:
            raise place.fault(f"`{bench}` and `{ours}` say the same; leave one of them out.")
    return found


Reader = Callable[[Any, Place, Path], Any]
READERS: dict[str, Reader] = {
    "num_requests": read_integer,
    "request_rate": read_rate,
    "duration_s": read_number,
    "arrivals": read_arrivals,
    "spikes": read_spikes,
    "exact": read_flag,
    "tick_s": read_number,
    "prompt_tokens": read_lengths,
    "output_tokens": read_lengths,
    "length_correlation": read_number,
    "n": read_lengths,
    "prefix_tokens": read_integer,
    "num_prefixes": read_integer,
    "prefix_zipf": read_number,
    "turns": read_counts,
    "opening_tokens": read_lengths,
    "turn_gap_s": read_waits,
    "turn_gap_of_rest": read_waits,
    "think_time_s": read_waits,
    "calls": read_counts,
    "tool_tokens": read_lengths,
    "tool_wait_s": read_waits,
    "max_context_tokens": read_integer,
    "summary_tokens": read_integer,
    "hash_block_size": read_integer,
    "lora_modules": read_names,
    "priority": read_integer,
    "slo": read_slos,
    "name": read_name,
}
SPEC_KEYS = (*READERS, *BENCH)
KEYS = (*SPEC_KEYS, "clients", "autotuning")
NEEDS = {
    "num_prefixes": ("prefix_tokens",),
    "prefix_zipf": ("num_prefixes",),
    "opening_tokens": ("turns", "calls"),
    "turn_gap_s": ("turns",),
    "turn_gap_of_rest": ("turns",),
    "think_time_s": ("turns",),
    "tool_tokens": ("calls",),
    "tool_wait_s": ("calls",),
    "max_context_tokens": ("turns", "calls"),
    "summary_tokens": ("max_context_tokens",),
}
_DEFAULTS = {one.name: getattr(WorkloadSpec(), one.name) for one in fields(WorkloadSpec)}


def _written(spec: WorkloadSpec) -> dict[str, Any]:
    """The fields that are not their defaults, as a file has them."""
    values = {name: getattr(spec, name) for name, default in _DEFAULTS.items() if getattr(spec, name) != default}
    return {name: _value(value) for name, value in values.items()}


def _value(value: Any) -> Any:
    """As a file has it: plain values, lists and mappings where there is a form that is easier to read than text."""
    if value == float("inf"):
        return "inf"
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, tuple):
        return [_value(item) for item in value]
    form = _FORMS.get(type(value))
    return str(value) if form is None else form(value)


def _weights(found: Choice | Histogram) -> Any:
    """A mapping, where no length is named twice."""
    items = (
        found.weights if isinstance(found, Choice) else [(f"{low}-{high}", share) for low, high, share in found.bins]
    )
    return dict(items) if len(dict(items)) == len(items) else str(found)


def _numbers(found: Any) -> dict[str, Any]:
    kept = ((one.name, getattr(found, one.name)) for one in fields(found))
    return {name: number for name, number in kept if number is not None}


_FORMS: dict[type, Callable[[Any], Any]] = {
    Choice: _weights,
    Histogram: _weights,
    Fixed: lambda found: found.tokens,
    FixedWait: lambda found: found.seconds,
    Pieces: lambda found: _value(found.pieces),
    Stages: lambda found: {"stages": _value(found.stages), "gap_s": found.gap_s},
    Piece: _numbers,
    Spike: _numbers,
    Diurnal: _numbers,
    RampUp: _numbers,
}
