"""Several traces on one clock."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from sim.errors import ConfigError, TraceError
from sim.specs.slo import SloClass
from sim.workload.adapters import BASE_MODEL
from sim.workload.names import PackedNames
from sim.workload.parallel_sampling import own_prompts
from sim.workload.slo_columns import Classes
from sim.workload.trace import Segment, Trace, picked

UNNAMED = "none"
"""The class of requests whose trace has none."""


def merge(traces: Sequence[Trace], *, from_zero: bool = False) -> Trace:
    """All requests in order of arrival, those of one time in the order of the traces; `from_zero` has each trace begin at 0 s.

    Requests and sessions of trace k have `-k` behind their names, and prompts share nothing across traces. An adapter of one name is
    one, and so is a class of clients. What a trace does not say is filled with what stands for it: one answer, priority 0, the base model,
    a session and a prompt of its own, a class without limits. Raises TraceError where nothing does.
    """
    if not traces:
        raise ConfigError("traces are merged from at least one, got none; name a trace.")
    _check(traces)
    starts_s = [float(trace.arrival_s[0]) if from_zero else 0.0 for trace in traces]
    arrival_s = np.concatenate([trace.arrival_s - start for trace, start in zip(traces, starts_s, strict=True)])
    columns = {
        "request_id": _numbered([trace.request_id for trace in traces]),
        "arrival_s": arrival_s,
        "prompt_tokens": np.concatenate([trace.prompt_tokens for trace in traces]),
        "output_tokens": np.concatenate([trace.output_tokens for trace in traces]),
        "n": _filled(traces, "n", 1),
        "priority": _filled(traces, "priority", 0),
        "lora_name": _adapters(traces),
        "session_id": _sessions(traces),
        "think_time_s": _filled(traces, "think_time_s", 0.0),
        "hold_s": _filled(traces, "hold_s", 0.0),
        "acceptance_length": _filled(traces, "acceptance_length", 1.0),
        "segments": _segments(traces),
    }
    columns["slo_class"], classes = _classes(traces)
    order = np.argsort(arrival_s, kind="stable")
    return Trace(
        **{name: picked(column, order) for name, column in columns.items() if column is not None},
        slo_classes=classes,
        source=", ".join(trace.source for trace in traces),
        notes=tuple(dict.fromkeys(note for trace in traces for note in trace.notes)),
    )


def _check(traces: Sequence[Trace]) -> None:
    for trace in traces:
        if trace.stage is not None:
            raise TraceError(
                f"{_named(trace)}: stages begin when the one before has ended and have no place on a clock; merge traces without `stage`."
            )
        if trace.max_concurrency is not None:
            raise TraceError(
                f"{_named(trace)}: limits of requests in flight (`max_concurrency`) are those of one benchmark; merge traces without them."
            )
    drafting = [trace.acceptance_length is not None for trace in traces]
    if any(drafting) and not all(drafting):
        raise _unlike(traces[drafting.index(False)], traces[drafting.index(True)], "acceptance_length")
    hashed = [trace for trace in traces if trace.segments is not None]
    talking = [trace for trace in traces if trace.segments is None and trace.session_id is not None]
    if hashed and talking:
        raise _unlike(talking[0], hashed[0], "hash_ids")


def _unlike(lacking: Trace, having: Trace, column: str) -> TraceError:
    return TraceError(
        f"{_named(lacking)}: must have `{column}` to be merged with {_named(having)}, which has; nothing stands for it here."
    )


def _named(trace: Trace) -> str:
    return trace.source or "a trace"


def _filled(traces: Sequence[Trace], column: str, default: float) -> Any:
    """Of all traces, None where no trace has it."""
    found = [getattr(trace, column) for trace in traces]
    if all(values is None for values in found):
        return None
    pairs = zip(found, traces, strict=True)
    return np.concatenate([np.full(len(trace), default) if values is None else values for values, trace in pairs])


def _classes(traces: Sequence[Trace]) -> tuple[Any, tuple[SloClass, ...]]:
    """The class of each request, and the classes: those of one name are one, and requests of a trace without any are one too."""
    if all(trace.slo_class is None for trace in traces):
        return None, ()
    classes, columns = Classes(), []
    for trace in traces:
        faulty = partial(_faulty, trace)
        if trace.slo_class is None:
            columns.append(np.full(len(trace), classes.number(SloClass(UNNAMED, ()), faulty)))
        else:
            columns.append(np.array([classes.number(one, faulty) for one in trace.slo_classes])[trace.slo_class])
    return np.concatenate(columns), classes.all


def _faulty(trace: Trace, rule: str) -> TraceError:
    return TraceError(f"{_named(trace)}: `slo` {rule}")


def _adapters(traces: Sequence[Trace]) -> PackedNames | None:
    if all(trace.lora_name is None for trace in traces):
        return None
    return PackedNames.of(name for trace in traces for name in trace.lora_name or [BASE_MODEL] * len(trace))


def _sessions(traces: Sequence[Trace]) -> PackedNames | None:
    """A request of a trace without sessions is one by itself."""
    if all(trace.session_id is None for trace in traces):
        return None
    return _numbered([trace.request_id if trace.session_id is None else trace.session_id for trace in traces])


def _numbered(names: Sequence[Sequence[str]]) -> PackedNames:
    return PackedNames.of(f"{name}-{number}" for number, some in enumerate(names) for name in some)


def _segments(traces: Sequence[Trace]) -> tuple[tuple[Segment, ...], ...] | None:
    """Content ids numbered anew as they come; a prompt of which nothing is known is like no other."""
    if all(trace.segments is None for trace in traces):
        return None
    numbers: dict[tuple[int, int], int] = {}
    return tuple(
        tuple((numbers.setdefault((number, content), len(numbers)), tokens) for content, tokens in prompt)
        for number, trace in enumerate(traces)
        for prompt in trace.segments or own_prompts(trace)
    )
