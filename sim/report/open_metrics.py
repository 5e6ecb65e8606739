"""Time series in the text format of OpenMetrics, with a time at each sample, so that Prometheus can read them in afterwards:
`promtool tsdb create-blocks-from openmetrics FILE DIR`.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from sim.engine.records import Floats
from sim.metrics.vllm_metrics import Metric, Series
from sim.outputs import writing

START_S = 1_767_225_600.0  # 2026-01-01T00:00:00Z in Unix time


def write_open_metrics(
    path: Path, metrics: Iterable[Metric], times_s: Floats, *, model_name: str, start_s: float = START_S
) -> None:
    """The file appears when it is whole. The first sample is at the Unix time `start_s`. Raises ConfigError where it cannot be written."""
    stamps = [f"{start_s + at_s:.3f}" for at_s in (times_s - times_s[0]).tolist()]
    with writing(path, "--prometheus") as place, place.open("w", encoding="utf-8") as file:
        for metric in metrics:
            file.writelines(f"{line}\n" for line in _lines(metric, stamps, model_name))
        file.write("# EOF\n")


def _lines(metric: Metric, stamps: list[str], model_name: str) -> Iterator[str]:
    name = f"vllm:{metric.name}"
    yield f"# HELP {name} {metric.text}"
    yield f"# TYPE {name} {metric.kind}"
    for series in metric.series:
        labels = {"model_name": model_name, "engine": str(series.engine), **metric.labels}
        told = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items())
        if metric.kind == "histogram":
            yield from _histogram(name, told, metric, series, stamps)
        else:
            suffix = "_total" if metric.kind == "counter" else ""
            for value, stamp in zip(series.values.tolist(), stamps, strict=True):
                yield f"{name}{suffix}{{{told}}} {_number(value)} {stamp}"


def _histogram(name: str, told: str, metric: Metric, series: Series, stamps: list[str]) -> Iterator[str]:
    assert series.sums is not None, "a histogram has sums"
    edges = [*(_number(bound, is_whole=False) for bound in metric.bounds), "+Inf"]
    for counts, total, stamp in zip(series.values.tolist(), series.sums.tolist(), stamps, strict=True):
        for edge, count in zip(edges, counts, strict=True):
            yield f'{name}_bucket{{{told},le="{edge}"}} {_number(count)} {stamp}'
        yield f"{name}_count{{{told}}} {_number(counts[-1])} {stamp}"
        yield f"{name}_sum{{{told}}} {_number(total)} {stamp}"


def _number(value: float, *, is_whole: bool = True) -> str:
    """Counts without a point, bounds with one, as Prometheus' own clients write them."""
    return str(int(value)) if is_whole and value.is_integer() else repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
