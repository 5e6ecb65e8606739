"""What was handed over between replicas: how long it took, how much it was, and how busy the links were."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sim.cluster.handover_records import HandoverRecords, PortUse
from sim.cluster.records import ClusterRecords
from sim.metrics.columns import Columns
from sim.metrics.statistics import statistics
from sim.metrics.summary import in_ms
from sim.units import MS


def handover_figures(run: ClusterRecords) -> dict[str, Any]:
    """`kv_transfers`: requests and bytes, their times, and each replica's links in use; nothing for other fleets.

    `failed_pulls` found nothing, or broke off as a replica was lost; `expired_leases` are those of KV that nobody asked for in time. `kv_wait` is from the end of the prefill to the asking for its KV, `kv_transfer` from there until it has come.
    """
    found = run.handovers
    if found is None:
        return {}
    moved = found.are_handed_over
    times = {
        "kv_wait": statistics((found.pull_start_s - found.prefill_end_s)[moved]),
        "kv_transfer": statistics((found.pull_end_s - found.pull_start_s)[moved]),
    }
    requests = {
        "requests": int(moved.sum()),
        "total_bytes": int(found.pulled_bytes.sum()),
        "failed_pulls": found.num_failed,
        "expired_leases": found.num_expired,
    }
    return {"kv_transfers": requests | in_ms(times) | {"links": link_figures(found.ports, run.span_s)}}


def link_figures(ports: Sequence[PortUse], span_s: float) -> list[dict[str, Any]]:
    """Those that were used: the share of their bandwidth and of the fleet's time."""
    return [
        {
            "replica": port.replica,
            "direction": port.direction,
            "bytes": int(port.moved_bytes),
            "utilization": port.moved_bytes / (port.bytes_per_s * span_s),
            "busy_fraction": port.busy_s / span_s,
        }
        for port in ports
        if port.moved_bytes
    ]


def handover_columns(found: HandoverRecords) -> Columns:
    """For each request who prefilled it (-1: nobody else), by when, and its KV's transfer; NaN and 0 where there was none."""
    return {
        "prefill_replica": found.prefill_replica,
        "prefill_end_s": found.prefill_end_s,
        "kv_pull_start_s": found.pull_start_s,
        "kv_pull_end_s": found.pull_end_s,
        "kv_transfer_ms": np.asarray((found.pull_end_s - found.pull_start_s) / MS),
        "kv_bytes": found.pulled_bytes,
    }
