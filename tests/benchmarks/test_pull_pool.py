"""What the replay of a measured pool of prefixes reads, and that it replays stage by stage."""

from pathlib import Path

import pytest

from benchmarks.pull_pool import MEASURED, SCENARIO, Cell, arms, measured_cells, pool_trace, simulated


def test_cells_by_arm_and_rate(tmp_path: Path) -> None:
    """Those of the other scenario are left out."""
    file = tmp_path / MEASURED
    file.parent.mkdir()
    rows = (f"{SCENARIO},24,load+p2p,21.93,,0.70,0", "hot_64x48K_512out,12,load,9.31,7.9,16.6,0")
    file.write_text("\n".join(("scenario,offered_rps,arm,achieved_rps,ttft_p50_s,lat_p50_s,failures", *rows)))
    assert measured_cells(tmp_path) == {("load+p2p", 24.0): Cell(21.93, 0.70)}


def test_pulls_spare_what_is_computed_elsewhere() -> None:
    """Two stages of a minute, the second when the first has drained: most prompts are computed, in over a second each, or pulled."""
    trace = pool_trace([1.0, 4.0])
    found = {name: simulated(trace, arms(12.6)[name]) for name in ("load", "load+p2p")}
    for cells in found.values():
        assert [cell.achieved_rps for cell in cells] == pytest.approx([1, 4], rel=0.1)
    assert found["load"][1].latency_s > 1.5
    assert found["load+p2p"][1].latency_s < 1.0
