"""What the replay of two pools against whole replicas reads."""

from pathlib import Path

import pytest

from benchmarks.disaggregation import ARMS, MEASURED, measured


def test_figures_of_an_arm_are_in_milliseconds(tmp_path: Path) -> None:
    """Seconds and milliseconds alike; other arms and other figures are left out."""
    file = tmp_path / MEASURED
    file.parent.mkdir()
    arm = ARMS[0].measured
    rows = (f"{arm},ttft,mean,1.157,s", f"{arm},ttft,p50,1,s", f"{arm},tpot,mean,5.7,ms", "other,ttft,mean,9,s")
    file.write_text("\n".join(("arm,metric,stat,value,unit", *rows)))
    assert measured(tmp_path, ARMS[0]) == pytest.approx({("ttft", "mean"): 1157, ("tpot", "mean"): 5.7})
