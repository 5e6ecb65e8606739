"""The figures of a run that is not kept: sums, largest values and sketches, which grow with no request.

Under the names of the whole run's (summary.py, replicas.py, what_limits.py), whose rules for single leaps and requests are called.
"""

import math
from collections import Counter
from typing import Any

import numpy as np

from sim.cluster.streaming import StreamPart
from sim.deployment import Deployment
from sim.engine.records import EngineRecords, Floats, Ints, RequestRecords
from sim.fleet import DeployedFleet
from sim.metrics.bottlenecks import Limits, Waits, resources, waits_of
from sim.metrics.cuda_graphs import counted_on, share_in_graphs, steps_by_shape
from sim.metrics.graph_cliffs import StepsByShape, busy_s_by_shape, cliffs_of
from sim.metrics.latencies import is_completed, latencies, queue_times
from sim.metrics.over_windows import OverWindows
from sim.metrics.overload import Overload, judged
from sim.metrics.quantile_sketch import ERROR, QuantileSketch, TailShare
from sim.metrics.replicas import FIGURES
from sim.metrics.slo import num_good
from sim.metrics.statistics import parts_of
from sim.metrics.step_samples import StepSamples
from sim.metrics.summary import in_ms, kv_cache_usage, ratio, totals_json
from sim.metrics.utilization import Work, possible, shares, work_of
from sim.metrics.what_limits import Limited, limits_json
from sim.specs.slo import Slo
from sim.units import MS

LATENCIES = ("ttft", "tpot", "itl", "e2el")
SHOWN = ("arrived", "completed", "output_tokens")
MOST_REASONS = 100
"""Of requests that are turned away, that many keep their reason."""


class EngineTotals:
    """What a replica did."""

    def __init__(self, num_gpu_blocks: int) -> None:
        self._num_gpu_blocks = num_gpu_blocks
        self.busy_s = self._waiting_s = self._usage_s = 0.0
        self.num_steps = self._most_waiting = self.hits = self.queries = 0
        self.last_end_s = -math.inf
        self.fewest_free_blocks: int | None = None

    def add(self, part: EngineRecords) -> None:
        """What it did since."""
        self.queries += part.prefix_cache_queries
        self.hits += part.prefix_cache_hits
        leaps = part.leaps
        if not len(leaps):
            return
        self.busy_s += leaps.busy_s
        self.num_steps += leaps.num_ran_steps
        self.last_end_s = leaps.last_end_s
        fewest = leaps.fewest_free_blocks
        self.fewest_free_blocks = min(fewest, fewest if self.fewest_free_blocks is None else self.fewest_free_blocks)
        for some in leaps.parts():
            durations_s, num_waiting = some.durations_s, some.num_waiting
            self._waiting_s += float((num_waiting * durations_s).sum())
            self._usage_s += float((kv_cache_usage(some.num_free_blocks, self._num_gpu_blocks) * durations_s).sum())
            self._most_waiting = max(self._most_waiting, int(num_waiting.max()))

    @property
    def most_usage(self) -> float | None:
        """The highest KV cache usage after any step."""
        if self.fewest_free_blocks is None:
            return None
        return float(kv_cache_usage(np.asarray(self.fewest_free_blocks), self._num_gpu_blocks))

    def to_json(self, span_s: float) -> dict[str, Any]:
        """As `replica_figures`; means are over that time."""
        figures = (0.0, 0.0, 0, 0.0, 0.0)
        if self.most_usage is not None:
            means = (self.busy_s / span_s, self._waiting_s / span_s)
            figures = (*means, self._most_waiting, self._usage_s / span_s, self.most_usage)
        hit_rate = ratio(self.hits, self.queries)
        return {"prefix_cache_hit_rate": hit_rate} | dict(zip(FIGURES, figures, strict=True))


class StepTotals:
    """What the steps of all replicas took."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self.work = Work(0.0, 0.0)
        self.by_shape = StepsByShape(np.zeros(0), np.zeros(0))
        self.waits = Waits(Counter(), Counter())
        self.samples = StepSamples(deployment.config)

    def add(self, part: EngineRecords) -> None:
        """More of them."""
        leaps, dispatch = part.leaps, self._deployment.graph_dispatch
        waits = waits_of(leaps, self._deployment.config)
        self.waits.seconds.update(waits.seconds)
        self.waits.num_steps.update(waits.num_steps)
        if not len(leaps):
            return
        self.work = Work.total((self.work, work_of(self._deployment, leaps)))
        more = StepsByShape(steps_by_shape(leaps, dispatch), busy_s_by_shape(leaps, dispatch))
        self.by_shape = StepsByShape(
            *(counted_on(had, np.arange(len(add)), add) for had, add in zip(self.by_shape, more, strict=True))
        )
        self.samples.add(leaps)


class RequestTotals:
    """What became of the requests, and of those that each replica served."""

    def __init__(self, num_replicas: int, slos: tuple[Slo, ...]) -> None:
        self._slos = slos
        self.sent = self.completed = self.num_preemptions = self.num_rejected = self.num_good = 0
        self.input_tokens = self.output_tokens = 0
        self.last_finish_s = -math.inf
        self.of_replicas = np.zeros((num_replicas, 3), dtype=np.int64)
        self.sketches = {name: QuantileSketch() for name in LATENCIES}
        self.queued = TailShare()

    def add(self, requests: RequestRecords, replica: Ints) -> None:
        """Some that have ended, or never will."""
        of, done = latencies(requests), is_completed(requests)
        for name, found in of._asdict().items():
            self.sketches[name].add(found.all_s())
        self.queued.add(of.ttft.all_s(), queue_times(requests).all_s())
        tokens = np.where(done, requests.generated_tokens, 0)
        self.completed += int(done.sum())
        self.input_tokens += int(requests.prompt_tokens.sum(where=done))
        self.output_tokens += int(tokens.sum())
        self.num_preemptions += int(requests.num_preemptions.sum())
        self.last_finish_s = max(self.last_finish_s, np.max(requests.finish_s, initial=-math.inf, where=done))
        if self._slos:
            self.num_good += num_good(self._slos, requests)
        counts = [np.bincount(replica, weights, len(self.of_replicas)) for weights in (None, done, tokens)]
        self.of_replicas += np.array(counts).T.astype(np.int64)


class RunSketch:
    """All of a run, part by part."""

    def __init__(self, fleet: DeployedFleet, slos: tuple[Slo, ...]) -> None:
        self._fleet = fleet
        self._deployment = fleet.first
        self.slos = slos
        num_blocks = self._deployment.plan.num_gpu_blocks
        self._engines = [EngineTotals(num_blocks) for _ in range(fleet.num_replicas)]
        self._steps = StepTotals(self._deployment)
        self.requests = RequestTotals(fleet.num_replicas, slos)
        self.rejected: dict[int, str] = {}
        self._arrivals = QuantileSketch()
        self._windows: OverWindows | None = None
        self._first_s = self._last_s = 0.0
        self._finished_later_s: Floats = np.zeros(0)
        self._num_begun_later = 0

    def add(self, part: StreamPart) -> None:
        """What happened since."""
        arrival_s, (ended, replica), requests = part.sent.arrival_s, part.ended, self.requests
        if self._windows is None:
            self._first_s = float(arrival_s[0])
            self._windows = OverWindows(self._first_s, (*SHOWN, "came", "begun"))
        self._last_s = float(arrival_s[-1])
        room = MOST_REASONS - len(self.rejected)
        self.rejected |= {requests.sent + row: part.rejected[row] for row in list(part.rejected)[:room]}
        requests.sent += len(arrival_s)
        requests.num_rejected += len(part.rejected)
        requests.add(ended, replica)
        self._arrivals.add(arrival_s - self._first_s)
        self._follow(self._windows, arrival_s, ended)
        for totals, engine in zip(self._engines, part.engines, strict=True):
            totals.add(engine)
            self._steps.add(engine)
            for gaps_s, counts in parts_of(engine.gaps):
                requests.sketches["itl"].add(gaps_s, counts)

    def _follow(self, windows: OverWindows, arrival_s: Floats, ended: RequestRecords) -> None:
        """What is told over time."""
        done, has_begun = is_completed(ended), np.isfinite(ended.first_scheduled_s)
        windows.add("arrived", arrival_s)
        windows.add("completed", ended.finish_s[done])
        windows.add("output_tokens", ended.finish_s[done], ended.generated_tokens[done])
        windows.add("came", ended.arrival_s[has_begun])
        windows.add("begun", ended.first_scheduled_s[has_begun])
        later_s = np.concatenate((self._finished_later_s, ended.finish_s[done]))
        self._finished_later_s = later_s[later_s > self._last_s]
        self._num_begun_later = int(np.count_nonzero(ended.first_scheduled_s[has_begun] > self._last_s))

    # -- figures ---------------------------------------------------------------------------------------------------

    @property
    def span_s(self) -> float:
        """From the first arrival to the end of the last step; 0 if no step ran."""
        return max(0.0, max(totals.last_end_s for totals in self._engines) - self._first_s)

    @property
    def busy_s(self) -> float:
        """Of all replicas."""
        return sum(totals.busy_s for totals in self._engines)

    @property
    def num_steps(self) -> int:
        return sum(totals.num_steps for totals in self._engines)

    @property
    def duration_s(self) -> float | None:
        """From the first arrival to the last completion."""
        return self.requests.last_finish_s - self._first_s if self.requests.completed else None

    @property
    def request_rate(self) -> float | None:
        """As `Trace.request_rate`."""
        span_s = self._last_s - self._first_s
        return (self.requests.sent - 1) / span_s if span_s else None

    def figures(self) -> dict[str, Any]:
        """The keys of `fleet_summary` and, with limits, of `slo_figures`."""
        found, dispatch = self.requests, self._deployment.graph_dispatch
        usages = [totals.most_usage for totals in self._engines if totals.most_usage is not None]
        return (
            totals_json(
                arrived=found.sent,
                completed=found.completed,
                rejected=found.num_rejected,
                failed=0,
                duration_s=self.duration_s,
                input_tokens=found.input_tokens,
                output_tokens=found.output_tokens,
            )
            | {f"p{percent}_arrival_s": self._arrived_s(percent) for percent in (1, 5)}
            | in_ms({name: sketch.statistics() for name, sketch in found.sketches.items()})
            | {
                "num_preemptions": found.num_preemptions,
                "num_gpu_blocks": self._deployment.plan.num_gpu_blocks,
                "max_kv_cache_usage": max(usages, default=None),
                "prefix_cache_hit_rate": ratio(
                    sum(totals.hits for totals in self._engines), sum(totals.queries for totals in self._engines)
                ),
                "cudagraph_step_fraction": share_in_graphs(self._steps.by_shape.num_steps, self.num_steps, dispatch),
                "gpu_busy_fraction": ratio(self.busy_s, self.span_s * len(self._engines)),
                "num_steps": self.num_steps,
            }
            | shares(self._steps.work, possible(self._deployment, self.busy_s))
            | self._slo_figures()
        )

    def _arrived_s(self, percent: int) -> float:
        """As `arrived_s`."""
        return self._arrivals.at(-(-percent * self.requests.sent // 100) - 1)

    def _slo_figures(self) -> dict[str, Any]:
        found = self.requests
        num_missed = found.sent - found.completed
        measured = {slo: found.sketches[slo.latency].percentile(slo.percentile) for slo in self.slos}
        over_all = {slo: found.sketches[slo.latency].percentile(slo.percentile, num_missed) for slo in self.slos}
        of_limits = {slo.key: None if value is None else value / MS for slo, value in measured.items()} | {
            slo.judged_key: value / MS if value is not None and math.isfinite(value) else None
            for slo, value in over_all.items()
        }
        if not self.slos:
            return of_limits
        goodput = ratio(found.num_good, self.duration_s)
        return of_limits | {"request_goodput": goodput, "slo_attainment": found.num_good / found.sent}

    def replicas(self) -> dict[str, Any]:
        """As `fleet_parts`."""
        if len(self._engines) == 1:
            return {}
        names = ("requests", "completed", "total_output_tokens")
        served = [dict(zip(names, counts, strict=True)) for counts in self.requests.of_replicas.tolist()]
        return {
            "fleet": {"replicas": self._fleet.num_replicas, "router": self._fleet.router},
            "replicas": [
                about | totals.to_json(self.span_s) for about, totals in zip(served, self._engines, strict=True)
            ],
        }

    def limits(self) -> dict[str, Any]:
        """As `what_limits`."""
        deployment, steps, samples = self._deployment, self._steps, self._steps.samples.shapes
        roofline_on = deployment.roofline_on
        busy = resources(samples, deployment.gpu, roofline_on) if roofline_on and samples else {}
        replica_s = self.span_s * len(self._engines)
        queued = {name: seconds / replica_s if replica_s else 0.0 for name, seconds in steps.waits.seconds.items()}
        limits = Limits(busy, queued)
        found = Limited(
            busy,
            queued,
            {name: count / max(1, self.num_steps) for name, count in steps.waits.num_steps.items()},
            cliffs_of(
                steps.by_shape, self.num_steps, self.busy_s, deployment.engine, samples, deployment.roofline_under
            ),
            str(limits) if self.num_steps else "nothing ran",
        )
        return limits_json(found, self._overload(), self._p99_ttft_queue_share())

    def _overload(self) -> Overload | None:
        assert self._windows is not None, "a run of at least one part"
        found, half_s = self.requests, (self._first_s + self._last_s) / 2
        return judged(
            found.sent,
            self._last_s - self._first_s,
            num_waiting=self._num_begun_later,
            half_way=round(self._windows.by("came", half_s) - self._windows.by("begun", half_s)),
            num_served=found.completed - len(self._finished_later_s),
        )

    def _p99_ttft_queue_share(self) -> float | None:
        p99_s = self.requests.sketches["ttft"].percentile(99)
        return None if p99_s is None else self.requests.queued.above(p99_s)

    def streamed(self) -> dict[str, Any]:
        """What is said of a run because it was streamed: how far off percentiles may be, and what happened over time."""
        windows = [] if self._windows is None else self._windows.to_json(SHOWN)
        return {"percentile_error": ERROR, "over_time": windows}
