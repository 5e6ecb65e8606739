"""The closer look at a trace, on traces small enough to count."""

import numpy as np
import pytest

from sim.report.trace import inspection_rows, trace_figure
from sim.workload.arrivals import Gamma
from sim.workload.generate import generate
from sim.workload.inspection import inspect
from sim.workload.spec import WorkloadSpec
from tests.workload.makers import make_trace


def test_rates_over_time() -> None:
    """Three requests in the first minute, none in the second, two in the third; the busiest minute lies anywhere."""
    found = inspect(make_trace((10.0, 20.0, 50.0, 130.0, 140.0)))
    assert found.requests_by_minute == {0: 3, 2: 2}
    assert found.peak_minute_rps == 3 / 60
    assert found.index_of_dispersion == pytest.approx(np.var([1, 1, 0, 0, 1] + 7 * [0] + [1]) / (4 / 13))
    assert (found.prefix_reuse, found.sessions) == (None, None)


def test_too_little_for_a_figure_is_none() -> None:
    """Less than a minute, and less than ten windows."""
    found = inspect(make_trace((0.0, 59.0)))
    assert (found.peak_minute_rps, found.index_of_dispersion, found.requests_by_minute) == (None, None, {0: 2})


def test_a_pause_of_centuries_takes_no_room() -> None:
    """Clocks of two kinds in one trace: what is held is held by request."""
    trace = make_trace((0.0, 1.0, 1e10))
    found = inspect(trace)
    assert found.requests_by_minute == {0: 2, 166_666_666: 1}
    assert found.index_of_dispersion == pytest.approx(2.0)
    trace_figure(trace, title="a pause")


@pytest.mark.parametrize(("burstiness", "least", "most"), [(1.0, 0.8, 1.2), (0.25, 3.0, 5.0)])
def test_dispersion_is_one_for_poisson_and_more_in_bursts(burstiness: float, least: float, most: float) -> None:
    """In the long run the square of the gaps' coefficient of variation: 1 over the gamma's shape."""
    trace = generate(WorkloadSpec(num_requests=20_000, request_rate=10, arrivals=Gamma(burstiness)))
    found = inspect(trace).index_of_dispersion
    assert found is not None
    assert least < found < most


def test_sessions() -> None:
    """Turns, the seconds between them, and how many sessions are open at once, ends included."""
    found = inspect(make_trace((0.0, 4.0, 6.0, 6.0, 10.0), session_id=("a", "b", "a", "c", "a"))).sessions
    assert found is not None
    assert (found.mean_turns, found.p50_turns, found.max_turns) == (5 / 3, 1.0, 3)
    assert (found.think_time_is_recorded, found.think_time_p50_s) == (False, 5.0)
    assert (found.mean_open, found.peak_open) == (1.0, 2)
    thinking = make_trace((0.0, 4.0), session_id=("a", "a"), think_time_s=np.array([0.0, 3.0]))
    assert inspect(thinking).sessions.think_time_p50_s == 3.0  # type: ignore[union-attr]


def test_hit_rates_by_size_end_where_all_is_found() -> None:
    """1 and 3 of each decade from 10,000 tokens on."""
    prompts = [((content, 4001),) for content in (*range(10), *range(10))]
    found = inspect(make_trace(range(20), segments=prompts)).prefix_reuse
    assert found is not None
    assert [(one.cache_tokens, one.hit_rate) for one in found.hit_rate_by_cache_size] == [
        (10_000, 0.0),
        (30_000, 0.0),
        (100_000, 10 * 4000 / (20 * 4001)),
    ]
    assert (found.distinct_tokens, found.enough_cache_tokens) == (40_000, 40_000)
    assert inspection_rows(inspect(make_trace(range(20), segments=prompts)), 1.0)["Cache of 100,000"] == "50.0%"


def test_the_figure_has_a_panel_for_what_there_is_and_a_word_for_what_is_not() -> None:
    """Rates, lengths, gaps and hit rates."""
    figure = trace_figure(make_trace((0.0, 0.0), prompt_tokens=(5, 9)), title="two")
    assert [axes.texts[0].get_text() for axes in figure.axes if axes.texts] == [
        "all come at once",
        "all come at once",
        "the trace does not say what prompts share",
    ]
    prompts = [((1, 64),), ((1, 64),)]
    figure = trace_figure(make_trace((0.0, 30.0), segments=prompts), title="two")
    assert not any(axes.texts for axes in figure.axes)
    assert np.asarray(figure.axes[3].lines[0].get_ydata()).max() == 100 * 48 / 128
