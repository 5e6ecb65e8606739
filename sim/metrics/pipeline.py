"""Bubbles of a pipeline: how long its stages wait for each other."""

from typing import Any

from sim.engine.records import Records


def pipeline_figures(records: Records) -> dict[str, Any]:
    """The share of the time in which a batch was in flight that the stages were idle, their mean and each; nothing for one stage.

    A stage idles while the batches in flight are on others, or their messages on the way; the time in which nothing is in flight
    is no bubble. Of unlike pools there is none.
    """
    in_flight_s = records.leaps.busy_s
    if records.stage_busy_s is None or not in_flight_s:
        return {}
    shares = [max(0.0, 1 - busy_s / in_flight_s) for busy_s in records.stage_busy_s]
    return {"pipeline_bubble_share": sum(shares) / len(shares), "stage_bubble_shares": shares}
