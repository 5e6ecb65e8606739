import numpy as np

from sim.metrics.over_windows import FIRST_WIDTH_S, MOST_WINDOWS, OverWindows


def test_windows_become_wider_and_nothing_is_lost() -> None:
    """Whatever comes first: a thousand things, one a second from 10 s on, in order and the other way round."""
    at_s = 10.0 + np.arange(1000.0)
    ways = []
    for times_s in (at_s, at_s[::-1]):
        windows = OverWindows(10.0, ("arrived", "tokens"))
        for time_s in times_s:
            windows.add("arrived", np.array([time_s]))
            windows.add("tokens", np.array([time_s]), np.array([3]))
        ways.append(windows.to_json(("arrived", "tokens")))
    assert ways[0] == ways[1]
    assert ways[0][1] == {"from_s": 4.0, "arrived": 4, "tokens": 12}
    assert len(ways[0]) == 250 <= MOST_WINDOWS
    assert windows.by("arrived", 10.0 + 500.0) == 500.0


def test_short_runs_have_short_windows() -> None:
    windows = OverWindows(0.0, ("arrived",))
    windows.add("arrived", np.array([0.0, FIRST_WIDTH_S]))
    assert windows.to_json(("arrived",)) == [{"from_s": 0.0, "arrived": 1}, {"from_s": FIRST_WIDTH_S, "arrived": 1}]
