"""The figures of a fleet: of all pools together, of each pool, of each replica."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from sim.cluster.records import ClusterRecords
from sim.engine.leap_records import LeapRecords
from sim.fleet import DeployedFleet, DeployedPool
from sim.metrics.cuda_graphs import cudagraph_step_fraction
from sim.metrics.lives import life_figures, lives_of, mean_gpus, replicas_over_time
from sim.metrics.lock_step import lock_step_figures
from sim.metrics.offload import loads_figures
from sim.metrics.replicas import replica_figures
from sim.metrics.summary import max_kv_cache_usage, summary_of
from sim.metrics.utilization import utilization
from sim.specs.engine import ResolvedEngine


def fleet_summary(fleet: DeployedFleet, run: ClusterRecords) -> dict[str, Any]:
    """`summary_of` for a fleet; None for what differs between unlike pools."""
    figures = summary_of(fleet.first, run.merged)
    if fleet.num_replicas > 1 or run.lives:
        figures["gpu_busy_fraction"] = run.busy_fraction
    figures |= lock_step_figures(run.ranks)
    return figures | _over_pools(fleet.pools, run) if fleet.is_unlike else figures


def _over_pools(pools: Sequence[DeployedPool], run: ClusterRecords) -> dict[str, Any]:
    """What depends on a pool's configuration or on its GPU."""
    leaps = [records.leaps for records in run.pools]
    deployments = [pool.deployment for pool in pools]
    has_tier = any(deployment.offload for deployment in deployments)
    usages = [max_kv_cache_usage(*of) for of in zip(leaps, map(_num_gpu_blocks, pools), strict=True)]
    return {
        "num_gpu_blocks": same(map(_num_gpu_blocks, pools)),
        "max_kv_cache_usage": max((usage for usage in usages if usage is not None), default=None),
        "cudagraph_step_fraction": _cudagraph_step_fraction(pools, leaps),
        **utilization(*zip(deployments, leaps, strict=True)),
        **({"kv_offload": loads_figures(run.merged.offload, run.merged.prefix_cache_queries)} if has_tier else {}),
    }


def _num_gpu_blocks(pool: DeployedPool) -> int:
    return pool.deployment.plan.num_gpu_blocks


def _cudagraph_step_fraction(pools: Sequence[DeployedPool], leaps: Sequence[LeapRecords]) -> float | None:
    """By the number of steps."""
    counts = [part.num_ran_steps for part in leaps]
    shares = [
        cudagraph_step_fraction(part, pool.deployment.graph_dispatch) or 0.0
        for pool, part in zip(pools, leaps, strict=True)
    ]
    return float(np.average(shares, weights=counts)) if any(counts) else None


def same(values: Iterable[Any]) -> Any:
    """The value that all have, None where they differ."""
    first, *others = values
    return first if all(other == first for other in others) else None


def layout_json(engine: ResolvedEngine) -> dict[str, int]:
    """How the GPUs of a replica share the model; stages where there are several."""
    stages = engine.pipeline_parallel_size
    more = {"pipeline_parallel_size": stages} if stages > 1 else {}
    return {"tensor_parallel_size": engine.tensor_parallel_size, **more}


def same_layout(engines: Iterable[ResolvedEngine]) -> dict[str, int | None]:
    """The layout that all have; None for what differs."""
    layouts = [layout_json(engine) for engine in engines]
    names = dict.fromkeys(name for layout in layouts for name in layout)
    return {name: same(layout.get(name, 1) for layout in layouts) for name in names}


def deployed_json(fleet: DeployedFleet) -> dict[str, Any]:
    """The model and its GPUs; null for what differs between pools."""
    deployments = [pool.deployment for pool in fleet.pools]
    return {
        "model_id": fleet.first.model.name,
        "gpu": same(deployment.gpu.name for deployment in deployments),
        **same_layout(deployment.engine for deployment in deployments),
    }


def fleet_parts(fleet: DeployedFleet, run: ClusterRecords) -> dict[str, Any]:
    """What was run, and the figures of each replica and of each pool that was asked for; nothing for a single replica."""
    if fleet.asked is None and fleet.num_replicas == 1:
        return {}
    replicas = replica_figures(run, [_num_gpu_blocks(fleet.pools[pool]) for pool in run.pool_of])
    replicas = [about | figures for about, figures in zip(_places(fleet, run), replicas, strict=True)]
    size = {"replicas": fleet.num_replicas} | ({"servers": fleet.num_servers} if run.server_of else {})
    if _has_nodes(fleet):
        size["addresses"] = sum(pool.num_addresses for pool in fleet.pools)
    if fleet.asked is None:
        return {"fleet": {**size, "router": fleet.router}, "replicas": replicas}
    pools = [fleet.pools[pool] for pool in run.pool_of]
    who = [
        {"pool": pool.name, "gpu": pool.deployment.gpu.name, **_lives(run, number)} for number, pool in enumerate(pools)
    ]
    return {
        "fleet": {**size, "router": fleet.router, **fleet.asked.to_json()},
        "replicas": [about | figures for about, figures in zip(who, replicas, strict=True)],
        "pools": pool_figures(fleet, run),
    }


def _places(fleet: DeployedFleet, run: ClusterRecords) -> list[dict[str, int]]:
    """The numbers of each replica's server, where one has several, and of its address, where nodes of servers have their own."""
    places: list[dict[str, int]] = [{} for _ in run.pool_of]
    if run.server_of:
        places = [{"server": server} for server in run.server_of]
    if _has_nodes(fleet):
        places = [place | {"address": address} for place, address in zip(places, _addresses(fleet, run), strict=True)]
    return places


def _has_nodes(fleet: DeployedFleet) -> bool:
    """Whether a pool has several addresses a server, each of several replicas."""
    engines = [pool.deployment.engine for pool in fleet.pools]
    return any(1 < engine.ranks_per_address < engine.data_parallel_size for engine in engines)


def _addresses(fleet: DeployedFleet, run: ClusterRecords) -> list[int]:
    """The number of each replica's address, as the router counts them; replicas are numbered pool by pool."""
    found: list[int] = []
    for number, pool in enumerate(fleet.pools):
        first = found[-1] + 1 if found else 0
        size = pool.deployment.engine.ranks_per_address
        found += [first + place // size for place in range(run.pool_of.count(number))]
    return found


def pool_figures(fleet: DeployedFleet, run: ClusterRecords) -> list[dict[str, Any]]:
    """An object a pool, with a summary's keys over the requests that it served; it is busy in shares of the fleet's time."""
    ranks = iter(run.ranks)
    return [
        {
            "pool": pool.name,
            "replicas": pool.num_replicas,
            **_servers_json(pool),
            "gpu": pool.deployment.gpu.name,
            **layout_json(pool.deployment.engine),
            "engine": pool.given.to_json(),
            **summary_of(pool.deployment, records),
            "gpu_busy_fraction": records.leaps.busy_s / replica_s if (replica_s := run.replica_s(number)) else None,
            **(
                lock_step_figures(list(islice(ranks, _num_servers(run, number, pool))))
                if pool.deployment.lock_step
                else {}
            ),
        }
        for number, (pool, records) in enumerate(zip(fleet.pools, run.pools, strict=True))
    ]


def _num_servers(run: ClusterRecords, number: int, pool: DeployedPool) -> int:
    """So many servers of the pool of that number have records, also where they come and go."""
    return (
        len({server for server, its in zip(run.server_of, run.pool_of, strict=True) if its == number})
        if run.server_of
        else pool.num_servers
    )


def _servers_json(pool: DeployedPool) -> dict[str, int]:
    """Nothing where each of them is one engine."""
    size = pool.deployment.engine.data_parallel_size
    return {"servers": pool.num_servers, "data_parallel_size": size} if size > 1 else {}


def _lives(run: ClusterRecords, number: int) -> dict[str, Any]:
    return {"lives": lives_of(run, number)} if run.lives else {}


def held_s(run: ClusterRecords, duration_s: float | None) -> float:
    """Seconds from the first arrival for which GPUs are held: the `duration`, or all that happened where nothing was completed."""
    if duration_s is not None:
        return duration_s
    arrival_s = run.merged.requests.arrival_s
    changes_s = [change["at_s"] for change in replicas_over_time(run.lives)]
    return max(run.span_s, float(max([arrival_s[-1], *changes_s[-1:]])) - float(arrival_s[0]))


def fleet_over_time(fleet: DeployedFleet, run: ClusterRecords, duration_s: float) -> dict[str, Any]:
    """How many replicas there were, and how long each takes to start by phase; nothing for a fleet that stays as it is."""
    if not run.lives:
        return {}
    starts = {pool.name: fleet.start_up(number) for number, pool in enumerate(fleet.pools)}
    return life_figures(run, duration_s) | {"start_up": starts}


def gpus_held(fleet: DeployedFleet, run: ClusterRecords, duration_s: float) -> float:
    """GPUs that the run held, on average over that time: replicas that start or are lost hold theirs."""
    if not run.lives:
        return fleet.num_gpus
    return mean_gpus(run, [pool.gpus_per_server for pool in fleet.pools], duration_s)
