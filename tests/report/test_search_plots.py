"""What the plots of a search draw."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from sim.report.search_plots import capacity_figure, pareto_figure, sensitivity_figure

HEAD: dict[str, Any] = {
    "model_id": "a-model",
    "gpu": "a-gpu",
    "vllm_version": "0.33.0",
    "trace": "chat",
    "engine": {},
    "trace_sha256": "0" * 64,
    "trace_request_rate": 1.0,
    "request_rate": None,
    "rate_scale": 1.0,
    "limit": None,
    "num_prompts": 10,
    "objective": ["cost"],
    "slo": {"ttft_p99": 100.0},
    "feasible": True,
    "pareto": [],
}


def figures(ttft_ms: float | None = 50.0, cost: float | None = 1.0, violation: float = 0.0) -> dict[str, Any]:
    metrics = {"slo_ttft_p99_ms": ttft_ms, "usd_per_million_output_tokens": cost, "p99_e2el_ms": 1.0}
    return {"slo_violation": violation, "metrics": metrics}


def candidate(value: int, share: float = 1.0, **found: Any) -> dict[str, Any]:
    return {"engine": {"max_num_seqs": value}, "replicas": 1, "feasible": True, "share": share, **figures(**found)}


def drawn(axis: Axes) -> dict[str, list[float]]:
    """Where on the horizontal axis each label of the legend has its points."""
    return {str(line.get_label()): np.asarray(line.get_xdata()).tolist() for line in axis.lines}


def legend(axis: Axes) -> list[str]:
    found = axis.get_legend()
    return [text.get_text() for text in found.get_texts()] if found else []


def test_candidates_that_break_a_limit_are_drawn_apart_and_are_no_winners() -> None:
    """Too slow, or with a request turned away; a shorter replay is left out, and so is a label without points."""
    good, slow, lossy = (
        candidate(1),
        candidate(2, ttft_ms=101.0, cost=0.1, violation=0.01),
        candidate(3, ttft_ms=40.0, violation=0.5),
    )
    summary = HEAD | {"candidates": [good, slow, lossy, candidate(4, share=0.5)], "best": good, "pareto": [slow]}
    (axis,) = pareto_figure(summary).axes
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("ttft_p99 (ms)", "$ per million output tokens")
    assert legend(axis) == ["breaks a limit", "candidate", "best", "limit"]
    assert drawn(axis)["breaks a limit"] == [101.0, 40.0]
    assert drawn(axis)["candidate"] == drawn(axis)["best"] == [50.0]


def test_where_nothing_keeps_the_limits_no_best_is_drawn() -> None:
    """The nearest is marked as what it is."""
    slow = candidate(2, ttft_ms=101.0, violation=0.01)
    (axis,) = pareto_figure(HEAD | {"candidates": [slow], "best": slow, "feasible": False}).axes
    assert legend(axis) == ["breaks a limit", "nearest, breaks a limit", "limit"]


def test_two_goals_are_the_two_axes() -> None:
    """The first goes up."""
    summary = HEAD | {"objective": ["cost", "latency"], "candidates": [candidate(1)], "best": candidate(1)}
    (axis,) = pareto_figure(summary).axes
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("P99 end to end (ms)", "$ per million output tokens")


def point(value: Any, reason: str | None = None, *, is_winner: bool = False, **found: Any) -> dict[str, Any]:
    measured = {"slo_violation": None, "metrics": {}} if reason else figures(**found)
    return {"value": value, "is_winner": is_winner, "reason": reason, **measured}


def test_sensitivity_is_shown_in_the_objective_and_the_limited_percentiles() -> None:
    """With what breaks a limit crossed out, in every panel, and the chosen value ringed."""
    points = [point(None, "too large"), point(8, is_winner=True), point(16, ttft_ms=200.0, cost=0.5, violation=1.0)]
    cost, ttft = sensitivity_figure(HEAD | {"sensitivity": {"max_num_seqs": points}}, "max_num_seqs").axes
    assert (cost.get_title(loc="left"), ttft.get_title(loc="left")) == ("$ per million output tokens", "ttft_p99 (ms)")
    for axis in (cost, ttft):
        assert drawn(axis)["breaks a limit"] == [2]
        assert drawn(axis)["chosen"] == [1]
        assert [text.get_text() for text in axis.get_xticklabels()] == ["default", "8", "16"]
    assert legend(cost) == ["breaks a limit", "chosen"]


def test_labels_of_many_values_do_not_touch() -> None:
    """Long ones are slanted, and of very many some are left out."""
    few = {"knob": [point(f"a rather long value {number}") for number in range(6)]}
    (axis, _) = sensitivity_figure(HEAD | {"sensitivity": few}, "knob").axes
    assert {text.get_rotation() for text in axis.get_xticklabels()} == {25.0}
    many = {"knob": [point(number) for number in range(100)]}
    (axis, _) = sensitivity_figure(HEAD | {"sensitivity": many}, "knob").axes
    assert len(axis.get_xticklabels()) <= 16


def test_a_knob_of_which_no_value_can_serve_has_no_legend() -> None:
    """And no failure."""
    (axis, _) = sensitivity_figure(HEAD | {"sensitivity": {"knob": [point(1, "too large")]}}, "knob").axes
    assert legend(axis) == []


def test_under_goodput_limits_judge_requests_and_no_percentile() -> None:
    """So none has a panel or a line."""
    points = {"knob": [point(1, is_winner=True)]}
    goodput = HEAD | {"objective": ["goodput"], "sensitivity": points}
    assert [axis.get_title(loc="left") for axis in sensitivity_figure(goodput, "knob").axes] == [
        "requests/s within limits"
    ]


def curve_row(rate: float, ttft_ms: float | None, *, keeps: bool) -> dict[str, Any]:
    return {"request_rate": rate, "ttft_p99": ttft_ms, "keeps_limits": keeps}


def test_a_curve_shows_its_limit_and_which_rates_keep_it() -> None:
    """Without a knee there is no label for one."""
    curve = [curve_row(1.0, 50.0, keeps=True), curve_row(2.0, 5000.0, keeps=False)]
    marks = {"max_request_rate": 1.0, "knee_request_rate": None, "num_gpus": 1}
    (axis,) = capacity_figure(HEAD | {"curve": curve} | marks).axes
    assert legend(axis) == ["keeps all limits", "breaks a limit", "limit", "capacity"]
    assert axis.get_yscale() == "log"
    (axis,) = capacity_figure(HEAD | {"curve": [curve_row(1.0, None, keeps=False)]} | marks).axes
    assert legend(axis) == []
