"""What the replay of measured pulls reads, and that it replays a pull."""

from pathlib import Path

from benchmarks.pulls import MEASURED, Times, measured_times, times


def test_times_of_one_model(tmp_path: Path) -> None:
    """By length; a model on many GPUs is left out."""
    file = tmp_path / MEASURED
    file.parent.mkdir()
    rows = ("gpt-oss-120b,H200,TP1,2048,70.6,49.0", "GLM-5.2-FP8,H200,PD,8070,1000,1690")
    file.write_text("\n".join(("model,gpu,layout,prefix_tokens,recompute_ms,p2p_pull_ms", *rows)))
    assert measured_times(tmp_path) == {2048: Times(70.6, 49.0)}


def test_a_slower_network_makes_a_pull_longer() -> None:
    """And leaves what is computed as it is."""
    slow, fast = times(4096, 1.0), times(4096, 10.0)
    assert slow.recompute == fast.recompute
    assert slow.pull > fast.recompute > fast.pull
