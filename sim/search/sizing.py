"""The replicas that a request rate takes, simulated behind the router."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from sim.errors import ConfigError, nearest
from sim.fleet import DeployedFleet
from sim.search.evaluate import Scenario
from sim.search.highest_rate import PRECISION, OnProbe, highest_rate, tried
from sim.search.rate_probe import Probe, RateProber
from sim.specs.fleet_file import MOST_REPLICAS


class Sizing(NamedTuple):
    """Replicas for a rate: as simulated behind the router, and as the rate divided by one replica's capacity says (`multiplied`)."""

    probe: Probe
    multiplied: int
    alone: Probe  # one replica at its share of the rate


def prober_of(scenario: Scenario, pool: str | None, rate: float | None) -> RateProber:
    """Probes the scenario's fleet, of which `pool` is sized where a rate is asked for.

    Raises ConfigError for a pool that is not there or is not said, and for a rate where a policy decides on the replicas.
    """
    names = scenario.fleet.names if scenario.fleet else []
    if pool is not None and rate is None:
        raise ConfigError(f"--pool {pool} says which pool --rate sizes; give a rate, or leave it out.")
    if pool is not None and pool not in names:
        there = f"the fleet has {', '.join(names)}" if names else "there are pools with --fleet only"
        raise ConfigError(f"--pool {pool} is no pool: {there}.{nearest(pool, names)}")
    if rate is not None and len(names) > 1 and pool is None:
        raise ConfigError(f"--rate sizes one pool; name it with --pool: {', '.join(names)}.")
    if rate is not None and scenario.fleet and scenario.fleet.is_scaled:
        raise ConfigError(
            "--rate asks for a number of replicas, and on that the fleet's autoscale decides; leave one of them out."
        )
    return RateProber(scenario, names.index(pool) if pool else 0)


def sizing(prober: RateProber, rate: float, replicas: int, kept: Probe | None, on_probe: OnProbe) -> dict[str, Any]:
    """The fewest replicas that keep all limits at that rate, of a pool beside others the others being as they are.

    `kept` is the highest rate of `replicas` replicas. Raises ConfigError where no number of them does.
    """
    unservable = prober.scenario.unservable
    if unservable and unservable.broken:
        raise ConfigError(f"no number of replicas keeps these limits: {unservable}")
    if prober.fleet.is_unlike:
        return _sized_json(prober, rate, fewest_in_pool(prober, rate, on_probe))
    one = kept if replicas == 1 else highest_rate(prober, 1, on_probe)[0]
    if one is None:
        raise ConfigError("no number of replicas keeps these limits: a lone one breaks them at any rate; relax them.")
    found = replicas_for(prober, rate, one, on_probe)
    return _sized_json(prober, rate, found.probe) | {
        "multiplied_replicas": found.multiplied,
        "multiplication": list(_where_multiplication_errs(prober.scenario, found)),
    }


def replicas_for(prober: RateProber, rate: float, one: Probe, on_probe: OnProbe) -> Sizing:
    """The fewest replicas that keep all limits at that rate, searched from the multiplied number on.

    Raises ConfigError where more than MOST_REPLICAS would be needed.
    """
    multiplied = max(1, math.ceil(rate / one.request_rate))
    if multiplied > MOST_REPLICAS:
        raise ConfigError(
            f"--rate {rate:g} takes about {multiplied:,} replicas, more than the {MOST_REPLICAS} simulated."
        )
    probe = tried(prober, rate, multiplied, on_probe)
    while probe.keeps and probe.replicas > 1:
        fewer = tried(prober, rate, probe.replicas - 1, on_probe)
        if not fewer.keeps:
            break
        probe = fewer
    while not probe.keeps:
        if probe.replicas == MOST_REPLICAS:
            raise ConfigError(f"--rate {rate:g} is not kept by {MOST_REPLICAS} replicas; relax the limits.")
        probe = tried(prober, rate, probe.replicas + 1, on_probe)
    return Sizing(probe, multiplied, prober.measure(rate / probe.replicas))


def fewest_in_pool(prober: RateProber, rate: float, on_probe: OnProbe) -> Probe:
    """The fewest replicas of the pool with which the fleet keeps all limits at that rate, by doubling and halving.

    Raises ConfigError where MOST_REPLICAS do not.
    """
    broken, kept = 0, tried(prober, rate, 1, on_probe)
    while not kept.keeps:
        if kept.replicas == MOST_REPLICAS:
            name = prober.fleet.pools[prober.pool].name
            raise ConfigError(
                f"--rate {rate:g} is not kept by {MOST_REPLICAS} replicas of {name}: "
                "another pool, or a request alone, is too slow; size another pool or relax the limits."
            )
        broken, kept = kept.replicas, tried(prober, rate, min(2 * kept.replicas, MOST_REPLICAS), on_probe)
    while kept.replicas - broken > 1:
        probe = tried(prober, rate, (kept.replicas + broken) // 2, on_probe)
        broken, kept = (broken, probe) if probe.keeps else (probe.replicas, kept)
    return kept


def size_json(fleet: DeployedFleet, replicas: int) -> dict[str, Any]:
    """Of a fleet; `replicas` are those that are asked about. What one costs that a policy scales stands in its metrics."""
    price = None if fleet.dynamics and fleet.dynamics.autoscale else fleet.usd_per_gpu_hour
    usd_per_hour = None if price is None else price * fleet.num_gpus
    return {"replicas": replicas, "num_gpus": fleet.num_gpus, "usd_per_hour": usd_per_hour}


def _sized_json(prober: RateProber, rate: float, probe: Probe) -> dict[str, Any]:
    size = size_json(prober.sized(probe.replicas), probe.replicas)
    per_hour = size["usd_per_hour"]
    return {
        "request_rate": rate,
        **({"pool": prober.fleet.pools[prober.pool].name} if prober.scenario.fleet else {}),
        **size,
        "usd_per_month": None if per_hour is None else per_hour * 30 * 24,
        "metrics": dict(probe.metrics),
        "multiplied_replicas": None,
        "multiplication": [],
    }


def _where_multiplication_errs(scenario: Scenario, found: Sizing) -> Iterator[str]:
    if found.multiplied != found.probe.replicas:
        yield f"dividing the rate by one replica's capacity says {found.multiplied} replicas, the simulated cluster needs {found.probe.replicas}"
    for slo in scenario.target.limits:
        together, alone = found.probe.metrics[slo.judged_key], found.alone.metrics[slo.judged_key]
        if together and alone and abs(together / alone - 1) > PRECISION:
            yield f"{slo.name} is {together:,.0f} ms behind the router, a lone replica at its share of the rate would have {alone:,.0f} ms"
