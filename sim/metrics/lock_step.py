"""What data-parallel ranks in lock step cost each other."""

from typing import Any

from sim.engine.rank_records import RankRecords


def lock_step_figures(ranks: RankRecords | None) -> dict[str, Any]:
    """Shares of the ranks' steps that are dummies, of their time in which they wait for the slowest, and of computed tokens that are padding.

    Where steps may be split, the share of those that were. Nothing where ranks are independent, or no step ran.
    """
    if ranks is None or not ranks.num_steps:
        return {}
    all_steps, all_s = ranks.num_ranks * ranks.num_steps, ranks.num_ranks * ranks.step_s
    figures = {
        "num_lock_steps": ranks.num_steps,
        "num_waves": ranks.num_waves,
        "dummy_step_share": sum(ranks.dummy_steps) / all_steps,
        "rank_waiting_share": max(0.0, 1 - ranks.own_s / all_s) if all_s else 0.0,
        "rank_padding_share": 1 - ranks.num_tokens / ranks.num_computed_tokens,
    }
    return figures | ({"microbatched_step_share": ranks.num_split_steps / ranks.num_steps} if ranks.may_split else {})
