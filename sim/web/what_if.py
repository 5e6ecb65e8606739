"""What the page's controls ask for: one load and one configuration or two, as a URL's query has them and as `sim.simulate` takes them."""

import math
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self
from urllib.parse import urlencode

from sim.errors import ConfigError, nearest
from sim.specs.engine import EngineConfig
from sim.specs.hardware import load_gpu
from sim.specs.serve_command import flag_words, parse_engine_args
from sim.web.controls import SHOWN_FLAGS, SWITCH, Control, Given, configuration_controls, load_controls

SECOND = "b-"  # what the second configuration's names begin with
COMPARED = "compare"  # is there where there is a second one


class WhatIf(NamedTuple):
    """What is not said is left out; `second` is None unless two configurations are compared."""

    load: Given
    first: Given
    second: Given | None = None

    @classmethod
    def of_query(cls, query: Mapping[str, str]) -> Self:
        """Raises ConfigError for a name that no control has."""
        given = {name: value.strip() for name, value in query.items()}
        loads, configurations = _names(load_controls()), _names(configuration_controls())
        known = [*loads, *configurations, *(f"{SECOND}{name}" for name in configurations), COMPARED]
        for name in given:
            if name not in known:
                raise ConfigError(f"the address asks for {name!r}, which no control has.{nearest(name, known)}")
        second = _said(given, configurations, SECOND) if given.get(COMPARED) else None
        return cls(_said(given, loads), _said(given, configurations), second)

    def to_query(self) -> str:
        """The part of the URL behind the question mark."""
        second = {} if self.second is None else {COMPARED: "on"} | {f"{SECOND}{k}": v for k, v in self.second.items()}
        return urlencode({**self.load, **self.first, **second})


def _names(controls: Iterable[Control]) -> list[str]:
    return [control.name for control in controls]


def _said(given: Given, names: Iterable[str], before: str = "") -> dict[str, str]:
    """What the controls of these names say, which stands under the names with that before them."""
    return {name: given[f"{before}{name}"] for name in names if given.get(f"{before}{name}")}


def simulate_arguments(load: Given, configuration: Given) -> dict[str, Any]:
    """The arguments of `sim.simulate`. Raises ConfigError that names the control, or the flag."""
    parsed = parse_engine_args(_words(configuration))
    gpu: Any = _required(configuration, "gpu", "a GPU")
    price = _number(configuration, "price")
    return {
        "model": parsed.model or _required(configuration, "model", "a model"),
        "gpu": gpu if price is None else load_gpu(gpu).at_price(price),
        "trace": _required(load, "trace", "a trace"),
        "engine": parsed.engine,
        "vllm_version": configuration.get("vllm-version") or parsed.vllm_version,
        "replicas": _whole_number(configuration, "replicas"),
        "router": configuration.get("router"),
        "request_rate": _number(load, "rate"),
        "limit": _whole_number(load, "limit"),
        "slo": _slos(load),
        "clock": load.get("clock", "engine"),
    }


def _words(configuration: Given) -> list[str]:
    """The flags of `vllm serve`; those written out win over controls."""
    words = []
    for name in SHOWN_FLAGS:
        value = configuration.get(name)
        if value in SWITCH:
            words.append(f"--{name}" if value == "on" else f"--no-{name}")
        elif value is not None:
            words += [f"--{name}", value]
    try:
        return words + shlex.split(configuration.get("flags", ""))
    except ValueError as problem:
        raise ConfigError(f"the further flags are no line of a shell: {problem}.") from None


def engine_controls(engine: EngineConfig) -> dict[str, str]:
    """What controls say to have these arguments."""
    said, words = {}, []
    for name, value in engine.given.items():
        flag = name.replace("_", "-")
        if flag in SHOWN_FLAGS:
            said[flag] = SWITCH[not value] if isinstance(value, bool) else str(value)
        else:
            words += flag_words(name, value)
    return said | ({"flags": shlex.join(words)} if words else {})


def simulate_command(load: Given, configuration: Given) -> str:
    """The `servecast simulate` line that asks for the same."""
    named = [(f"--{name}", configuration.get(name)) for name in ("gpu", "price", "replicas", "router", "vllm-version")]
    named += [("--trace", load.get("trace")), ("--request-rate", load.get("rate")), ("--limit", load.get("limit"))]
    named += [*(("--slo", slo) for slo in _slos(load)), ("--clock", load.get("clock"))]
    words = [word for flag, value in named if value for word in (flag, value)]
    return shlex.join(["servecast", "simulate", configuration.get("model", ""), *words, *_words(configuration)])


def _slos(load: Given) -> tuple[str, ...]:
    return tuple(load.get("slo", "").replace(",", " ").split())


def _required(given: Given, name: str, what: str) -> str:
    if not given.get(name):
        raise ConfigError(f"{what} is missing; choose one.")
    return given[name]


def _number(given: Given, name: str) -> float | None:
    text = given.get(name)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise ConfigError(f"{name} must be a number, got {text!r:.40}; leave it empty for the default.")
    return value


def _whole_number(given: Given, name: str) -> int | None:
    value = _number(given, name)
    if value is not None and not value.is_integer():
        raise ConfigError(f"{name} must be a whole number, got {given[name]!r:.40}; leave it empty for the default.")
    return None if value is None else int(value)
