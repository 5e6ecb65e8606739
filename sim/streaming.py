"""A run of requests that are more than memory holds: replayed once, as they come, and summed up as they end."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from sim.cluster.clients import AT_THEIR_TIMES
from sim.cluster.streaming import StreamPart, simulate_stream
from sim.errors import ConfigError
from sim.fleet import DeployedFleet
from sim.measure.forecast import confidence_json, confidence_of
from sim.metrics.cost import cost
from sim.metrics.fleet import deployed_json
from sim.metrics.run_sketch import RunSketch
from sim.specs.engine import EngineConfig
from sim.specs.slo import Slo, limits_json
from sim.version import __version__
from sim.workload.frames import is_frame
from sim.workload.load import StreamSha256
from sim.workload.parts import StreamLike
from sim.workload.readers import TraceLike
from sim.workload.trace import Trace

NOT_STREAMED = "which a stream cannot have: it is read once, sent at its own times and not kept"


def is_whole(trace: StreamLike) -> TypeGuard[TraceLike]:
    """Whether a trace is one thing, and not parts that come one after the other."""
    return isinstance(trace, str | Trace) or is_frame(trace) or not isinstance(trace, Iterable)


def check_streamable(arguments: Mapping[str, Any]) -> None:
    """Raises ConfigError for an argument that is given, and with which no stream is replayed."""
    given = next((name for name, value in arguments.items() if value is not None), None)
    if given:
        raise ConfigError(f"`{given}` is given, {NOT_STREAMED}; leave it out, or leave `stream` out.")


@dataclass
class StreamedRun:
    """What is known of a run, and of the requests that were sent."""

    sketch: RunSketch
    sha256: StreamSha256 = field(default_factory=StreamSha256)
    source: str = ""
    notes: tuple[str, ...] = ()


def run_stream(
    fleet: DeployedFleet,
    parts: Iterable[Trace],
    slos: tuple[Slo, ...],
    *,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> StreamedRun:
    """Replay a stream. `on_progress` is called with twice the requests that were sent so far: how many come nobody knows.

    Raises ConfigError and TraceError for what cannot be streamed, some of it only as it comes.
    """
    run = StreamedRun(RunSketch(fleet, slos))

    def told() -> Iterator[Trace]:
        for part in parts:
            if part.slo_class is not None:
                raise ConfigError(
                    "a trace whose classes have limits of their own (`slo`) cannot be streamed; leave `stream` out."
                )
            run.sha256.add(part)
            run.source, run.notes = part.source, part.notes
            yield part

    def tell(part: StreamPart) -> None:
        run.sketch.add(part)
        if on_progress:
            on_progress(run.sketch.requests.sent, run.sketch.requests.sent)

    simulate_stream(told(), fleet.plan(seed=seed), tell, seed=seed)
    return run


def streamed_summary(
    run: StreamedRun, fleet: DeployedFleet, given: EngineConfig, load: Mapping[str, Any]
) -> dict[str, Any]:
    """The summary of `sim.simulate`, and under `streamed` what is known because the run was a stream."""
    sketch, figures = run.sketch, run.sketch.figures()
    held_s = sketch.span_s if sketch.duration_s is None else sketch.duration_s
    return {
        **deployed_json(fleet),
        "engine": given.to_json(),
        "trace": run.source,
        "trace_sha256": run.sha256.hexdigest(),
        "trace_request_rate": sketch.request_rate,
        **load,
        "vllm_version": fleet.first.engine.vllm_version,
        "servecast_version": __version__,
        "notes": list(fleet.first.run_notes),
        **({"slo": limits_json(sketch.slos)} if sketch.slos else {}),
        **figures,
        **sketch.replicas(),
        "limits": sketch.limits(),
        "step_time": fleet.first.step_times.to_json(),
        **cost(figures, held_s=held_s, num_gpus=fleet.num_gpus, usd_per_hour=fleet.usd_per_gpu_hour),
        **AT_THEIR_TIMES.to_json(),
        "streamed": sketch.streamed(),
        "confidence": confidence_json(confidence_of(fleet.first, figures)),
    }
