"""What swapping preempted requests out and in took."""

from typing import Any

from sim.engine.records import Records


def swap_figures(records: Records) -> dict[str, Any]:
    """Nothing where preempted requests are recomputed.

    `num_swapped_out` of the preemptions found room in swap space, at most `max_swap_space_usage` of which was used; steps waited
    `swap_s` for `swapped_bytes` to be copied either way, over all replicas.
    """
    found = records.swaps
    if found is None:
        return {}
    return {
        "num_swapped_out": found.num_swapped_out,
        "max_swap_space_usage": found.most_used,
        "swapped_bytes": found.num_bytes,
        "swap_s": found.copy_s,
    }
