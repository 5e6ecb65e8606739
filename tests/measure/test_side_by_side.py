"""Finished runs side by side, and what is asserted of them, by numbers worked out by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import sim
from sim.errors import ConfigError, RunsError, SimError
from sim.measure.assertions import Assertion, judge
from sim.measure.differences import difference
from sim.measure.finished import Finished, Interval, read_finished
from sim.measure.sampling_error import mean_interval, percentile_interval
from sim.report.whole_folder import write_json
from tests.cli.conftest import Servecast, servecast

__all__ = ["servecast"]

DETAILS = {"output_lens": [3, 1, 0], "ttfts": [0.1, 0.3, 9.0], "itls": [[0.02, 0.04], [], []]}
BENCH: dict[str, Any] = {
    "completed": 2,
    "failed": 1,
    "mean_ttft_ms": 201.0,
    "request_rate": "inf",
    "seed": 3,
    **DETAILS,
}


def finished(name: str, value: float | None, interval: Interval | None = None, load: str | None = None) -> Finished:
    intervals = {"p99_ttft_ms": interval} if interval else {}
    return Finished(name, "simulated", {"p99_ttft_ms": value}, intervals, {}, load)


def written(path: Path, values: object) -> Path:
    path.write_text(json.dumps(values))
    return path


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two simulations of one load, as far as their folders are read."""
    place = tmp_path_factory.mktemp("results")
    for seats in (2, 8):
        engine = sim.EngineConfig(max_num_seqs=seats)
        run = sim.simulate("Llama-3.1-8B", "h100-sxm", "chat", limit=20, rate_scale=8, engine=engine)
        (place / f"{seats}").mkdir()
        write_json(place / f"{seats}" / "summary.json", run.summary)
        run.requests.to_csv(place / f"{seats}" / "requests.csv", index=False)
    return [place / "2", place / "8"]


def test_a_benchmark_has_its_own_figures_and_those_of_its_details(tmp_path: Path) -> None:
    """The mean that it says, though its details say 200; percentiles of two requests by numpy's linear rule. The third request failed."""
    found = read_finished(written(tmp_path / "bench.json", BENCH))
    assert (found.name, found.kind, found.load) == ("bench", "measured", None)
    assert found.figures["mean_ttft_ms"] == 201.0
    assert found.figures["p99_ttft_ms"] == pytest.approx(100 + 0.99 * 200)
    assert found.figures["mean_itl_ms"] == found.figures["mean_tpot_ms"] == pytest.approx(30)
    assert found.samples_ms["e2el"].tolist() == pytest.approx([160, 300])
    assert found.intervals["median_ttft_ms"] == pytest.approx((100, 300))
    assert {"seed", "request_rate"}.isdisjoint(found.figures)


def test_a_benchmark_without_details_has_what_it_says(tmp_path: Path) -> None:
    bare = {key: value for key, value in BENCH.items() if key not in DETAILS}
    found = read_finished(written(tmp_path / "bench.json", bare))
    assert (dict(found.figures), found.intervals, found.samples_ms) == (
        {"completed": 2, "failed": 1, "mean_ttft_ms": 201.0},
        {},
        {},
    )


def test_a_simulation_is_read_with_its_requests(folders: list[Path]) -> None:
    """From the folder; from summary.json alone without them, under the name of its folder."""
    whole, alone = read_finished(folders[0]), read_finished(folders[0] / "summary.json")
    summary = json.loads((folders[0] / "summary.json").read_text())
    assert whole.name == alone.name == "2"
    assert whole.figures == alone.figures
    assert whole.figures["limits.queued.max_num_seqs"] == summary["limits"]["queued"]["max_num_seqs"]
    assert whole.intervals["p99_ttft_ms"] == tuple(summary["confidence"]["intervals"]["p99_ttft_ms"])
    assert np.percentile(whole.samples_ms["ttft"], 99) == pytest.approx(summary["p99_ttft_ms"])
    assert (alone.samples_ms, alone.load) == ({}, summary["trace_sha256"])


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([], "is no result of one run"),
        ({"routers": []}, "give a folder of `servecast simulate --out`, its summary.json, or the JSON of `vllm bench"),
        ({**BENCH, "ttfts": ["?", 1, 1]}, "`ttfts` and `itls` must hold seconds, an entry a request"),
        ({**BENCH, "ttfts": [0.1]}, "`ttfts` and `itls` must hold seconds, an entry a request"),
    ],
)
def test_what_is_no_result(values: object, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(RunsError, match=sentence):
        read_finished(written(tmp_path / "bench.json", values))


def test_intervals_of_samples() -> None:
    """1 to 100: the mean is within 1.645 standard errors (29.01 / 10); 1.645 x 5 samples on either side of the median's 50."""
    samples = np.arange(1.0, 101.0)
    assert mean_interval(samples) == pytest.approx((50.5 - 4.7724, 50.5 + 4.7724), abs=1e-3)
    assert percentile_interval(samples, 50) == (41.0, 59.0)
    assert percentile_interval(samples, 99) == (97.0, 100.0)
    assert mean_interval(np.array([7.0])) == percentile_interval(np.array([7.0]), 99) == (7.0, 7.0)


@pytest.mark.parametrize(
    ("base", "other", "verdict"),
    [
        (finished("a", 100.0), finished("b", 100.0), "same"),
        (finished("a", 100.0), finished("b", 101.9), "within noise"),
        (finished("a", 100.0), finished("b", 104.0), "differs"),
        # each by itself: intervals that overlap, and that do not
        (finished("a", 100.0, (90, 110)), finished("b", 115.0, (105, 125)), "within noise"),
        (finished("a", 100.0, (90, 104)), finished("b", 115.0, (106, 125)), "differs"),
        # of one load: 105 to 90 and 125 to 110 are +17 % and +14 % as well, so that it is no matter that they overlap
        (finished("a", 100.0, (90, 110), "l"), finished("b", 115.0, (105, 125), "l"), "differs"),
        # with the shortest step times the difference is gone, or the other way round
        (finished("a", 100.0, (90, 110), "l"), finished("b", 115.0, (91, 125), "l"), "within noise"),
        (finished("a", 100.0, (90, 110), "l"), finished("b", 115.0, (80, 125), "l"), "within noise"),
        # only one of the two has an interval
        (finished("a", 100.0, None, "l"), finished("b", 103.0, (80, 125), "l"), "differs"),
    ],
)
def test_when_a_difference_is_noise(base: Finished, other: Finished, verdict: str) -> None:
    found = difference(base, other, "p99_ttft_ms")
    assert found is not None
    assert found.verdict == verdict


def test_a_difference_from_nothing_has_no_share() -> None:
    """And of what was not measured there is none."""
    assert difference(finished("a", 0.0), finished("b", 5.0), "p99_ttft_ms") == (None, "differs")
    assert difference(finished("a", None), finished("b", 5.0), "p99_ttft_ms") is None


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("p99_ttft_ms<500", True),
        (" p99_ttft_ms <= 400ms", True),
        ("p99_ttft_ms<0.4s", False),
        ("p99_ttft_ms==4e2", True),
        ("p99_ttft_ms>400", False),
        ("p99_ttft_ms>=.4s", True),
        ("p99_ttft_ms<=1.05x", False),
        ("p99_ttft_ms<=2x", True),
    ],
)
def test_assertions_hold_or_fail(text: str, holds: bool) -> None:
    """Of 400 ms, against a baseline of 200."""
    found = judge(Assertion.parse(text, ["p99_ttft_ms"]), finished("b", 400.0), finished("a", 200.0))
    assert found.holds is holds
    assert f"{'holds' if holds else 'fails'}: 400 ms" in found.text


def test_what_was_not_measured_fails() -> None:
    """In the run, or in the baseline."""
    asserted = Assertion.parse("p99_ttft_ms<=1x", ["p99_ttft_ms"])
    for run, base in ((None, 200.0), (100.0, None)):
        found = judge(asserted, finished("b", run), finished("a", base))
        assert (found.holds, found.text) == (False, "b: p99_ttft_ms<=1x fails, for it was not measured.")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("p99_ttft_ms", "must be a metric, one of <, <=, >, >=, ==, and a number"),
        ("p99_ttft_ms<five", "got 'p99_ttft_ms<five'"),
        ("p99_tfft_ms<5", "'p99_tfft_ms' is no figure of these runs. Did you mean p99_ttft_ms"),
        ("p99_ttft_ms<5tok/s", r"is measured in ms, s, us or x \(times the baseline\), got 'tok/s'"),
        ("num_steps<5ms", r"num_steps is measured in x \(times the baseline\), got 'ms'"),
        ("limits.queued.kv_space<5s", r"is measured in % or x \(times the baseline\), got 's'"),
        ("p99_ttft_ms<2x", "is relative to a baseline; give one with --baseline"),
    ],
)
def test_what_cannot_be_asserted(text: str, sentence: str, folders: list[Path]) -> None:
    with pytest.raises(SimError, match=sentence):
        sim.compare_results(folders, asserts=[text])


def test_results_are_written_whole(folders: list[Path], tmp_path: Path) -> None:
    """The rows as CSV and JSON, and a plot; the same bytes each time."""
    bench = written(tmp_path / "bench.json", BENCH)
    found = sim.compare_results([*folders, bench, bench])
    texts = []
    for _ in range(2):
        found.write(tmp_path / "found")
        texts.append({path.name: path.read_bytes() for path in sorted((tmp_path / "found").iterdir())})
    assert list(texts[0]) == ["distributions.png", "report.html", "results.csv", "summary.json"]
    assert texts[0] == texts[1]
    assert [run.name for run in found.runs] == ["2", "8", "bench", "bench #2"]
    table = pd.read_csv(tmp_path / "found" / "results.csv", index_col="metric")
    runs = [json.loads((folder / "summary.json").read_text()) for folder in folders]
    assert [table.loc["p99_ttft_ms", name] for name in ("2", "8")] == pytest.approx(
        [run["p99_ttft_ms"] for run in runs]
    )
    assert table.loc["p99_ttft_ms", "8 change"] == pytest.approx(runs[1]["p99_ttft_ms"] / runs[0]["p99_ttft_ms"] - 1)
    assert table.loc["arrived", "8 verdict"] == "same"
    (row,) = [row for row in str(found).splitlines() if row.startswith("mean_ttft_ms")]
    assert row.split()[-2:] == ["201.0", f"{(201 / runs[0]['mean_ttft_ms'] - 1) * 100:+,.1f}"]


def test_fewer_than_two_are_no_comparison(folders: list[Path]) -> None:
    with pytest.raises(ConfigError, match="two results or more, or one and what to assert of it, got 1"):
        sim.compare_results(folders[:1])


def test_the_command_exits_as_its_assertions_fare(folders: list[Path], servecast: Servecast) -> None:
    """0 where all hold, 1 where one fails, with a line for each; 2 for one that says nothing."""
    held = servecast("compare", *folders, "--assert", "completed==20")
    assert (held.status, held.err.count("holds: 20.")) == (0, 2)
    failed = servecast("compare", folders[1], "--baseline", folders[0], "--assert", "mean_ttft_ms>1x", "--json")
    assert (failed.status, failed.err.count("fails")) == (1, 1)
    (judged,) = json.loads(failed.out)["assertions"]
    assert (judged["run"], judged["assert"], judged["holds"]) == ("8", "mean_ttft_ms>1x", False)
    assert judged["bound"] == json.loads((folders[0] / "summary.json").read_text())["mean_ttft_ms"]
    assert servecast("compare", *folders, "--assert", "completed=20").status == 2
    assert servecast("compare", folders[0], "--out", folders[1]).err.endswith(
        "which is not a comparison of results of Servecast; name a new or empty folder.\n"
    )


def test_a_model_and_a_trace_are_simulated(servecast: Servecast) -> None:
    """Not taken for results; nor is a lone word that names nothing."""
    assert servecast("compare", "Llama-3.1-8B").err == "servecast: error: Missing option '--gpu', and also '--trace'.\n"
    assert "two different routers" not in servecast("compare", "nothing", "there").err
    assert "nothing: cannot be read" in servecast("compare", "nothing", "there").err
