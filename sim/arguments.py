"""The arguments of a run as JSON, in its summary, and back: a run of which the results are there can be simulated again.

What has no place in JSON, such as requests or step times that a program made, is written as the name of its type.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sim.errors import ConfigError
from sim.memory.layerwise_offload import Savings
from sim.specs.engine import EngineConfig
from sim.specs.fleet_file import read_fleet
from sim.specs.hardware import HardwareProfile, load_gpu
from sim.specs.model import ModelSpec
from sim.workload.rates import rate_json
from sim.workload.readers import read_trace
from sim.workload.source import STDIN, trace_name
from sim.workload.trace import Trace

ONLY_HOW = frozenset(["stream", "keep_records", "jobs", "progress", "step_log"])
"""Arguments of `sim.simulate` that have no part in what comes of it."""
TWICE = frozenset(["limit", "seed"])
"""Options of reading a trace that change nothing when they are given again."""
MADE = "made_by_a_program"


def arguments_json(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are not at their defaults; of a trace that was read before, also how, where `given` does not say the same again."""
    told = {
        name: _as_json(name, value)
        for name, value in given.items()
        if name not in ONLY_HOW and (name not in defaults or value != defaults[name])
    }
    trace = given["trace"]
    if isinstance(trace, Trace) and trace.source:
        once = {name: value for name, value in trace.read_with.items() if name not in TWICE or value != given[name]}
        told["trace"] = {"path": trace.source, **_plain(once)} if once else trace.source
    return told


def arguments_of(told: Mapping[str, Any]) -> dict[str, Any]:
    """The same again for `sim.simulate`. Raises SimError for what is gone, and ConfigError for what was made by a program."""
    return {name: _given(name, value) for name, value in told.items()}


def _as_json(name: str, value: Any) -> Any:
    if isinstance(value, HardwareProfile) and value.source:
        return {"profile": value.source, "price_usd_per_hour": value.price_usd_per_hour}
    if isinstance(value, ModelSpec):
        return value.name
    if isinstance(value, EngineConfig):
        return value.to_json()
    if name == "fleet":
        return read_fleet(value).to_json()
    if name == "request_rate":
        return rate_json(value)
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Savings):
        return asdict(value)
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, str | int | float) else {MADE: type(value).__name__}


def _given(name: str, value: Any) -> Any:
    if isinstance(value, dict) and MADE in value:
        raise ConfigError(f"its {name} was a {value[MADE]} that a program had made.")
    if name == "trace":
        return _trace(**({"path": value} if isinstance(value, str) else value))
    if name == "gpu" and isinstance(value, dict):
        profile, price = load_gpu(value["profile"]), value["price_usd_per_hour"]
        return profile if price == profile.price_usd_per_hour else profile.at_price(price)
    if name == "engine":
        return EngineConfig(**dict(_with_tuples(value)))
    if name == "layerwise" and "savings" in value:
        return value | {"savings": Savings(**value["savings"])}
    if name == "request_rate":
        return float(value)
    return tuple(value) if name == "acceptance" and isinstance(value, list) else value


def _trace(path: str, **read_with: Any) -> Any:
    if path == trace_name(STDIN):
        raise ConfigError("its requests came from standard input.")
    return read_trace(path, **read_with) if read_with else path


def _with_tuples(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        yield name, tuple(value) if isinstance(value, list) else value
