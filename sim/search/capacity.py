"""The highest request rate that a deployment serves within limits, and the replicas that a given rate needs."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sim.errors import ConfigError
from sim.inputs import LARGEST, SMALLEST, is_sane
from sim.measure.forecast import confidence_json, confidence_of, forecast_of
from sim.metrics.slo import limits_json
from sim.search.answer import unservable_json
from sim.search.bench_load import DATASET, BenchLoad, Verification, verification
from sim.search.evaluate import Scenario
from sim.search.objectives import share_unserved
from sim.search.rate_probe import Probe, RateProber
from sim.search.space import REPLICAS, num_gpus
from sim.specs.fleet_file import MOST_REPLICAS
from sim.specs.serve_command import serve_command
from sim.steptime.perturbed import all_off_by
from sim.units import MS
from sim.version import __version__

PRECISION = 0.02  # of the highest rate
MOST_DOUBLINGS = 12
CURVE = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25)  # of the highest rate

OnProbe = Callable[[str], None]


class Sizing(NamedTuple):
    """Replicas for a rate: as simulated behind the router, and as the rate divided by one replica's capacity says (`multiplied`)."""

    probe: Probe
    multiplied: int
    alone: Probe  # one replica at its share of the rate


def highest_rate(prober: RateProber, replicas: int, on_probe: OnProbe) -> tuple[Probe | None, Probe | None]:
    """The highest rate that keeps all limits, to PRECISION, and the lowest tried rate that does not; None for one not found."""
    unservable = prober.scenario.unservable
    if unservable and unservable.broken:
        return None, prober.measure(prober.trace_rate, replicas)
    kept, broken = _bracket(prober, replicas, on_probe)
    while kept and broken and broken.request_rate / kept.request_rate > 1 + PRECISION:
        middle = math.sqrt(kept.request_rate * broken.request_rate)
        probe = _probe(prober, middle, replicas, on_probe)
        kept, broken = (probe, broken) if probe.keeps else (kept, probe)
    return kept, broken


def _bracket(prober: RateProber, replicas: int, on_probe: OnProbe) -> tuple[Probe | None, Probe | None]:
    """Two rates around the highest one, found by doubling or halving the trace's own rate."""
    probe = _probe(prober, prober.trace_rate, replicas, on_probe)
    factor = 2.0 if probe.keeps else 0.5
    for _ in range(MOST_DOUBLINGS):
        following = _probe(prober, probe.request_rate * factor, replicas, on_probe)
        if following.keeps != probe.keeps:
            return (probe, following) if probe.keeps else (following, probe)
        probe = following
    return (probe, None) if probe.keeps else (None, probe)


def _probe(prober: RateProber, rate: float, replicas: int, on_probe: OnProbe) -> Probe:
    on_probe(f"{rate:.3g} requests/s on {replicas} replica{'s' if replicas > 1 else ''}")
    return prober.probe(rate, replicas)


def replicas_for(prober: RateProber, rate: float, one: Probe, on_probe: OnProbe) -> Sizing:
    """The fewest replicas that keep all limits at that rate, searched from the multiplied number on.

    Raises ConfigError where more than MOST_REPLICAS would be needed.
    """
    multiplied = max(1, math.ceil(rate / one.request_rate))
    if multiplied > MOST_REPLICAS:
        raise ConfigError(
            f"--rate {rate:g} takes about {multiplied:,} replicas, more than the {MOST_REPLICAS} simulated."
        )
    probe = _probe(prober, rate, multiplied, on_probe)
    while probe.keeps and probe.replicas > 1:
        fewer = _probe(prober, rate, probe.replicas - 1, on_probe)
        if not fewer.keeps:
            break
        probe = fewer
    while not probe.keeps:
        if probe.replicas == MOST_REPLICAS:
            raise ConfigError(f"--rate {rate:g} is not kept by {MOST_REPLICAS} replicas; relax the limits.")
        probe = _probe(prober, rate, probe.replicas + 1, on_probe)
    return Sizing(probe, multiplied, prober.measure(rate / probe.replicas))


def knee(points: Sequence[tuple[float, float]]) -> float | None:
    """The rate at which latency begins to rise: the point farthest below the line from the first to the last; None if there is none."""
    if len(points) < 3 or points[-1][1] <= points[0][1]:
        return None
    (first_x, first_y), (last_x, last_y) = points[0], points[-1]

    def below(point: tuple[float, float]) -> float:
        return (point[0] - first_x) / (last_x - first_x) - (point[1] - first_y) / (last_y - first_y)

    return max(points, key=below)[0]


def capacity(
    scenario: Scenario,
    *,
    rate: float | None = None,
    replicas: int = 1,
    bench_dataset: str | Path = DATASET,
    intervals: bool = True,
    on_probe: OnProbe,
) -> tuple[dict[str, Any], BenchLoad | None]:
    """The answer of `servecast capacity`, as one JSON object, and the load that checks it, read from `bench_dataset`;
    `replicas` is the size of the deployment that is asked about.

    Raises ConfigError without limits on percentiles, and for a trace without a rate.
    """
    if not scenario.target.limits:
        raise ConfigError("capacity is the highest rate within limits; give some, such as --slo ttft_p99=500ms.")
    if rate is not None and not (rate > 0 and is_sane(rate)):
        raise ConfigError(f"--rate must be above 0, and from {SMALLEST:g} to {LARGEST:g} requests/s, got {rate:g}.")
    if not 1 <= replicas <= MOST_REPLICAS:
        raise ConfigError(f"--replicas must be from 1 to {MOST_REPLICAS}, got {replicas}.")
    prober = RateProber(scenario)
    kept, broken = highest_rate(prober, replicas, on_probe)
    curve = _curve(prober, kept or broken, replicas, on_probe)
    check = (
        verification(scenario, {REPLICAS: replicas}, prober.at_rate(kept.request_rate), bench_dataset) if kept else None
    )
    summary = {
        **_head(scenario, replicas),
        **_most(scenario, kept, broken, check),
        "curve": [_curve_row(scenario, probe) for probe in curve],
        "knee_request_rate": _knee(scenario, curve),
        "sizing": _sizing(scenario, prober, rate, replicas, kept, on_probe) if rate else None,
        "confidence": _confidence(prober, kept, intervals=intervals),
    }
    return summary, check.load if check else None


def _confidence(prober: RateProber, kept: Probe | None, *, intervals: bool) -> dict[str, Any]:
    """The confidence in the figures at the highest rate; if there is none, that of the deployment."""
    deployment, metrics = prober.deployment, kept.metrics if kept else None
    if kept is None or not intervals:
        return confidence_json(confidence_of(deployment, metrics))

    def replay(factor: float, rate_share: float) -> Mapping[str, Any]:
        return prober.measure(rate_share * kept.request_rate, kept.replicas, all_off_by(factor)).metrics

    return forecast_of(deployment, kept.metrics, replay, request_rate=kept.request_rate)


def _curve(prober: RateProber, around: Probe | None, replicas: int, on_probe: OnProbe) -> list[Probe]:
    assert around is not None, "at least one rate was tried"
    probes = []
    for share in CURVE:
        on_probe(f"curve at {share:.0%} of {around.request_rate:.3g} requests/s")
        probes.append(prober.measure(share * around.request_rate, replicas))
    return probes


def _head(scenario: Scenario, replicas: int) -> dict[str, Any]:
    return {
        "unservable": unservable_json(scenario),
        "model_id": scenario.model.name,
        "gpu": scenario.gpu.name,
        **scenario.to_json(),
        "vllm_version": scenario.deploy({}).engine.vllm_version,
        "servecast_version": __version__,
        "slo": limits_json(scenario.target.limits),
        "router": scenario.router,
        **_size(scenario, replicas),
        "serve_command": serve_command(scenario.model.name, scenario.base),
    }


def _size(scenario: Scenario, replicas: int) -> dict[str, Any]:
    price, gpus = scenario.gpu.price_usd_per_hour, num_gpus({}, scenario.base) * replicas
    return {"replicas": replicas, "num_gpus": gpus, "usd_per_hour": None if price is None else price * gpus}


def _most(scenario: Scenario, kept: Probe | None, broken: Probe | None, check: Verification | None) -> dict[str, Any]:
    """The highest rate and what follows from it; if there is none, which limit to relax."""
    if kept is None or check is None:
        assert broken is not None, "without a rate that keeps the limits, one was broken"
        return {
            "max_request_rate": None,
            "metrics": None,
            "concurrent_requests": None,
            "bench_command": None,
            "verify": None,
            "limited_by": None,
        }
    metrics = kept.metrics
    return {
        "max_request_rate": kept.request_rate,
        "metrics": dict(metrics),
        "concurrent_requests": kept.request_rate * (1 - share_unserved(metrics)) * metrics["mean_e2el_ms"] * MS,
        "bench_command": check.command,
        "verify": check.to_json(),
        "limited_by": _tightest(scenario, metrics) if broken else "no limit within reach",
    }


def _tightest(scenario: Scenario, metrics: Mapping[str, Any]) -> str:
    """The limit with the least room at the highest rate."""
    known = [slo for slo in scenario.target.limits if metrics.get(slo.judged_key) is not None]
    return max(known, key=lambda slo: metrics[slo.judged_key] / slo.limit_s).name if known else "a growing backlog"


def _curve_row(scenario: Scenario, probe: Probe) -> dict[str, Any]:
    metrics = probe.metrics
    names = (
        "output_throughput",
        "request_throughput",
        "mean_ttft_ms",
        "p99_ttft_ms",
        "mean_tpot_ms",
        "p99_e2el_ms",
        "gpu_busy_fraction",
        "arrived",
        "completed",
        "rejected",
    )
    row = {"request_rate": probe.request_rate, "keeps_limits": probe.keeps}
    row |= {slo.name: metrics[slo.judged_key] for slo in scenario.target.limits}
    row |= {"worst_excess": scenario.target.violation(metrics)}
    return row | {name: metrics[name] for name in names}


def _knee(scenario: Scenario, curve: Sequence[Probe]) -> float | None:
    """The knee of the first latency that is limited."""
    key = scenario.target.limits[0].judged_key
    return knee([(probe.request_rate, probe.metrics[key]) for probe in curve if probe.metrics[key] is not None])


def _sizing(
    scenario: Scenario, prober: RateProber, rate: float, replicas: int, kept: Probe | None, on_probe: OnProbe
) -> dict[str, Any]:
    if scenario.unservable and scenario.unservable.broken:
        raise ConfigError(f"no number of replicas keeps these limits: {scenario.unservable}")
    one = kept if replicas == 1 else highest_rate(prober, 1, on_probe)[0]
    if one is None:
        raise ConfigError("no number of replicas keeps these limits: a lone one breaks them at any rate; relax them.")
    found = replicas_for(prober, rate, one, on_probe)
    size = _size(scenario, found.probe.replicas)
    per_hour = size["usd_per_hour"]
    return {
        "request_rate": rate,
        **size,
        "usd_per_month": None if per_hour is None else per_hour * 30 * 24,
        "metrics": dict(found.probe.metrics),
        "multiplied_replicas": found.multiplied,
        "multiplication": list(_where_multiplication_errs(scenario, found)),
    }


def _where_multiplication_errs(scenario: Scenario, found: Sizing) -> Iterator[str]:
    if found.multiplied != found.probe.replicas:
        yield f"dividing the rate by one replica's capacity says {found.multiplied} replicas, the simulated cluster needs {found.probe.replicas}"
    for slo in scenario.target.limits:
        together, alone = found.probe.metrics[slo.judged_key], found.alone.metrics[slo.judged_key]
        if together and alone and abs(together / alone - 1) > PRECISION:
            yield f"{slo.name} is {together:,.0f} ms behind the router, a lone replica at its share of the rate would have {alone:,.0f} ms"
