"""What runs left behind, simulated or measured, read back: `summary.json`, a folder of `--out`, or the JSON of `vllm bench serve`.

A benchmark's figures are its own; those that it does not report are computed from its details, where it was run with `--save-detailed`.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from sim.engine.records import Floats
from sim.errors import RunsError
from sim.inputs import is_sane, is_there, read_json
from sim.measure.sampling_error import mean_interval, percentile_interval
from sim.metrics.statistics import statistics
from sim.metrics.summary import in_ms
from sim.units import MS

Interval = tuple[float, float]
Figures = Mapping[str, float | None]
LATENCIES = ("ttft", "tpot", "itl", "e2el")
PERCENTILES = {"median": 50, "p90": 90, "p95": 95, "p99": 99}
SUMMARY, REQUESTS = "summary.json", "requests.csv"
NO_FIGURES = frozenset(
    [
        "seed",
        "limit",
        "rate_scale",
        "request_rate",
        "trace_request_rate",
        "max_concurrency",
        "users",
        "think_time_s",
        "num_prompts",
        "burstiness",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "wall_time_s",
        "p1_arrival_s",
        "p5_arrival_s",
    ]
)
"""Numbers of a summary that say what was asked for, and how long it took to compute."""
AN_ANSWER = ("completed", "mean_ttft_ms")  # keys that the results of one run have


class Finished(NamedTuple):
    """A run's figures by the summary's names, with a 90 % interval where one is known, and the latencies of its requests in ms.

    Figures of parts stand under dotted names, such as `limits.queued.kv_space`. `load` is the fingerprint of what was replayed, None
    where that is not known.
    """

    name: str
    kind: Literal["simulated", "measured"]
    figures: Figures
    intervals: Mapping[str, Interval]
    samples_ms: Mapping[str, Floats]
    load: str | None


def read_finished(path: str | Path) -> Finished:
    """One run. Raises RunsError with the file and the rule where it is none."""
    path = Path(path)
    file = path / SUMMARY if is_there(path, Path.is_dir) else path
    values = read_json(file, RunsError)
    if not isinstance(values, dict) or any(key not in values for key in AN_ANSWER):
        raise RunsError(
            f"{file}: is no result of one run; give a folder of `servecast simulate --out`, its {SUMMARY}, or the JSON of `vllm bench serve --save-result`."
        )
    name = path.name if file != path else path.parent.name if path.name == SUMMARY else path.stem
    if "confidence" in values:
        return _simulated(name or str(path), values, path / REQUESTS)
    return _measured(name, values, file)


def finished_of(name: str, summary: Mapping[str, Any]) -> Finished:
    """A simulation's summary, without its requests."""
    return _simulated(name, summary, None)


def _simulated(name: str, summary: Mapping[str, Any], requests: Path | None) -> Finished:
    intervals = summary["confidence"].get("intervals", {})
    return Finished(
        name,
        "simulated",
        dict(_flat(summary)),
        {key: (low, high) for key, (low, high) in intervals.items()},
        _latencies_ms(requests) if requests and is_there(requests) else {},
        summary["trace_sha256"],
    )


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, float | None]]:
    """Numbers, and what was not measured, of mappings within mappings; a confidence is about figures, and is none."""
    for key, value in values.items():
        if isinstance(value, Mapping) and key not in {"arguments", "confidence", "engine", "step_time"}:
            yield from _flat(value, f"{before}{key}.")
        elif key not in NO_FIGURES and (
            value is None or (isinstance(value, int | float) and not isinstance(value, bool))
        ):
            yield f"{before}{key}", value


def _latencies_ms(requests: Path) -> dict[str, Floats]:
    """Those of completed requests; gaps between tokens are not kept by request."""
    import pandas as pd

    table = pd.read_csv(requests)
    done = table[table["finish_s"].notna()]
    return {name: done[f"{name}_ms"].dropna().to_numpy() for name in ("ttft", "tpot", "e2el")}


def _measured(name: str, values: Mapping[str, Any], file: Path) -> Finished:
    figures = {key: value for key, value in _flat(values) if value is None or is_sane(value)}
    samples_s = _details_s(values, file)
    again = in_ms({latency: statistics(some) for latency, some in samples_s.items()})
    figures = {**again, **{key: value for key, value in figures.items() if value is not None}}
    return Finished(
        name,
        "measured",
        figures,
        dict(_sampled_intervals(samples_s)),
        {latency: some / MS for latency, some in samples_s.items()},
        None,
    )


def _details_s(values: Mapping[str, Any], file: Path) -> dict[str, Floats]:
    """Latencies as the benchmark computes them, of the requests that were answered; none without its details."""
    if any(not isinstance(values.get(key), list) for key in ("ttfts", "itls", "output_lens")):
        return {}
    rows = [row for row, tokens in enumerate(values["output_lens"]) if tokens]
    try:
        ttft_s = np.array([float(values["ttfts"][row]) for row in rows])
        itls_s = [np.array(values["itls"][row], dtype=np.float64) for row in rows]
        further = np.array([values["output_lens"][row] - 1 for row in rows])
        decode_s = np.array([math.fsum(gaps) for gaps in itls_s])
        gaps_s = np.concatenate([np.zeros(0), *itls_s])
        if not (np.isfinite(ttft_s).all() and np.isfinite(gaps_s).all()):
            raise ValueError  # noqa: TRY301 - told with the rest
    except (TypeError, ValueError, LookupError):
        raise RunsError(
            f"{file}: `ttfts` and `itls` must hold seconds, an entry a request; is it the file that vllm bench serve wrote?"
        ) from None
    several = further > 0
    return {"ttft": ttft_s, "tpot": decode_s[several] / further[several], "itl": gaps_s, "e2el": ttft_s + decode_s}


def _sampled_intervals(samples_s: Mapping[str, Floats]) -> Iterator[tuple[str, Interval]]:
    """What other requests of the same kind might have shown."""
    for latency, some in samples_s.items():
        if len(some):
            yield f"mean_{latency}_ms", mean_interval(some / MS)
            for what, percent in PERCENTILES.items():
                yield f"{what}_{latency}_ms", percentile_interval(some / MS, percent)
