"""The highest request rate that a fleet serves within limits, and latency by rate."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sim.errors import ConfigError
from sim.fleet import DeployedFleet, DeployedPool
from sim.inputs import LARGEST, SMALLEST, is_sane
from sim.measure.forecast import confidence_json, confidence_of, forecast_of, least_known
from sim.metrics.fleet import layout_json, same
from sim.search.answer import unservable_json
from sim.search.bench_load import DATASET, BenchLoad, Verification, verification
from sim.search.candidate_json import serve_lines
from sim.search.evaluate import Scenario
from sim.search.highest_rate import OnProbe, highest_rate
from sim.search.objectives import share_unserved
from sim.search.rate_probe import Probe, RateProber
from sim.search.sizing import prober_of, size_json, sizing
from sim.specs.fleet_file import MOST_REPLICAS
from sim.specs.slo import limits_json
from sim.steptime.perturbed import all_off_by
from sim.units import MS
from sim.version import __version__

CURVE = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25)  # of the highest rate


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
    replicas: int | None = None,
    pool: str | None = None,
    bench_dataset: str | Path = DATASET,
    intervals: bool = True,
    on_probe: OnProbe,
) -> tuple[dict[str, Any], BenchLoad | None]:
    """The answer of `servecast capacity`, as one JSON object, and the load that checks it, read from `bench_dataset`;
    `replicas` is the size of the deployment that is asked about, and `pool` the one of a fleet that `rate` sizes.

    Raises ConfigError without limits on percentiles, and for a trace without a rate.
    """
    if not scenario.target.limits:
        raise ConfigError("capacity is the highest rate within limits; give some, such as --slo ttft_p99=500ms.")
    if rate is not None and not (rate > 0 and is_sane(rate)):
        raise ConfigError(f"--rate must be above 0, and from {SMALLEST:g} to {LARGEST:g} requests/s, got {rate:g}.")
    prober = prober_of(scenario, pool, rate)
    replicas = _replicas(prober, replicas)
    kept, broken = highest_rate(prober, replicas, on_probe)
    curve = _curve(prober, kept or broken, replicas, on_probe)
    check = (
        verification(scenario, prober.sized(replicas), prober.at_rate(kept.request_rate), bench_dataset)
        if kept
        else None
    )
    summary = {
        **_head(scenario, prober.sized(replicas)),
        **_most(scenario, kept, broken, check),
        "curve": [_curve_row(scenario, probe) for probe in curve],
        "knee_request_rate": _knee(scenario, curve),
        "sizing": sizing(prober, rate, replicas, kept, on_probe) if rate else None,
        "confidence": _confidence(prober, kept, intervals=intervals),
    }
    return summary, check.load if check else None


def _replicas(prober: RateProber, replicas: int | None) -> int:
    """Those asked for, or those of the pool that may be sized. Raises ConfigError where both a fleet and `replicas` say it."""
    if replicas is None:
        return prober.fleet.pools[prober.pool].num_servers
    if prober.scenario.fleet:
        raise ConfigError(
            f"the pools of --fleet say how many replicas there are, got --replicas {replicas} too; leave it out."
        )
    if not 1 <= replicas <= MOST_REPLICAS:
        raise ConfigError(f"--replicas must be from 1 to {MOST_REPLICAS}, got {replicas}.")
    return replicas


def _confidence(prober: RateProber, kept: Probe | None, *, intervals: bool) -> dict[str, Any]:
    """The confidence in the figures at the highest rate; if there is none, that of the deployment."""
    metrics = kept.metrics if kept else None
    deployment = least_known([pool.deployment for pool in prober.fleet.pools], metrics)
    if kept is None or not intervals:
        return confidence_json(confidence_of(deployment, metrics))

    def replay(factor: float, rate_share: float) -> Mapping[str, Any]:
        return prober.measure(rate_share * kept.request_rate, kept.replicas, all_off_by(factor)).metrics

    return forecast_of(
        deployment, kept.metrics, replay, request_rate=kept.request_rate, clock=prober.scenario.clients.clock
    )


def _curve(prober: RateProber, around: Probe | None, replicas: int, on_probe: OnProbe) -> list[Probe]:
    """`around` is its own point where all of the trace was replayed."""
    assert around is not None, "at least one rate was tried"
    probes = []
    for share in CURVE:
        on_probe(f"curve at {share:.0%} of {around.request_rate:.3g} requests/s")
        is_known = share == 1.0 and around.metrics
        probes.append(around if is_known else prober.measure(share * around.request_rate, replicas))
    return probes


def _head(scenario: Scenario, fleet: DeployedFleet) -> dict[str, Any]:
    return {
        "unservable": unservable_json(scenario),
        "model_id": scenario.model.name,
        "gpu": same(pool.deployment.gpu.name for pool in fleet.pools),
        **scenario.to_json(),
        "vllm_version": fleet.first.engine.vllm_version,
        "servecast_version": __version__,
        "slo": limits_json(scenario.target.limits),
        "router": fleet.router,
        **size_json(fleet, fleet.num_servers),
        **(
            {"fleet": fleet.asked.to_json(), "pools": [_pool_json(pool) for pool in fleet.pools]} if fleet.asked else {}
        ),
        "serve_command": "\n  ".join(serve_lines(fleet)),
    }


def _pool_json(pool: DeployedPool) -> dict[str, Any]:
    return {
        "pool": pool.name,
        "role": pool.role,
        "replicas": pool.num_servers,
        **({"data_parallel_size": size} if (size := pool.deployment.engine.data_parallel_size) > 1 else {}),
        "gpu": pool.deployment.gpu.name,
        **layout_json(pool.deployment.engine),
        "engine": pool.given.to_json(),
    }


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
        "limited_by": _limited_by(scenario, metrics, broken) if broken else "no limit within reach",
    }


def _limited_by(scenario: Scenario, metrics: Mapping[str, Any], broken: Probe) -> str:
    """The limit with the least room at the highest rate, unless the next rate tried keeps all of them and only the queue grows."""
    if broken.metrics and scenario.target.violation(broken.metrics) == 0:
        return "a growing backlog"
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
