"""What data-parallel ranks in lock step cost each other."""

from collections.abc import Sequence
from typing import Any

from sim.engine.rank_records import RankRecords


def lock_step_figures(servers: Sequence[RankRecords]) -> dict[str, Any]:
    """Shares of the ranks' steps that are dummies, of their time in which they wait for the slowest, and of computed tokens that are padding.

    Over all servers, each of whose ranks step together. Where steps may be split, the share of those that were. Nothing where ranks are
    independent, or no step ran.
    """
    num_steps = sum(ranks.num_steps for ranks in servers)
    if not num_steps:
        return {}
    all_steps = sum(ranks.num_ranks * ranks.num_steps for ranks in servers)
    all_s = sum(ranks.num_ranks * ranks.step_s for ranks in servers)
    num_tokens, num_computed = (
        sum(ranks.num_tokens for ranks in servers),
        sum(ranks.num_computed_tokens for ranks in servers),
    )
    figures = {
        "num_lock_steps": num_steps,
        "num_waves": sum(ranks.num_waves for ranks in servers),
        "dummy_step_share": sum(sum(ranks.dummy_steps) for ranks in servers) / all_steps,
        "rank_waiting_share": max(0.0, 1 - sum(ranks.own_s for ranks in servers) / all_s) if all_s else 0.0,
        "rank_padding_share": 1 - num_tokens / num_computed,
    }
    splitting = [ranks for ranks in servers if ranks.may_split and ranks.num_steps]
    if not splitting:
        return figures
    num_split = sum(ranks.num_split_steps for ranks in splitting)
    return figures | {"microbatched_step_share": num_split / sum(ranks.num_steps for ranks in splitting)}
