"""`clock="client"` in all its places: figures, tables, limits, intervals, explanations, folders, searches."""

from functools import cache

import pytest

import sim
from sim.api import Result
from sim.arguments import arguments_of
from sim.cluster.front_end import Clock
from sim.errors import ConfigError
from sim.explanation.explain import explain
from sim.report.page.run import run_page
from sim.search.scoring import objective

LATE_MS = (4.0, 34.0)  # prompts of 13 to 8,000 tokens, up to 30 streams

LIMIT = "ttft_p99=100ms"


@cache
def run(clock: Clock) -> Result:
    return sim.simulate("Llama-3.1-8B", "h100-sxm", "chat", limit=60, slo=[LIMIT], clock=clock)


def test_figures_are_later_and_times_per_token_stay() -> None:
    """TTFT and E2EL by the same, and the summary says by whose clock; the engine's says nothing of it."""
    engine, client = run("engine").summary, run("client").summary
    late_ms = client["mean_ttft_ms"] - engine["mean_ttft_ms"]
    assert LATE_MS[0] < late_ms < LATE_MS[1]
    assert client["mean_e2el_ms"] - engine["mean_e2el_ms"] == pytest.approx(late_ms)
    assert client["mean_tpot_ms"] == pytest.approx(engine["mean_tpot_ms"])
    assert client["mean_itl_ms"] == engine["mean_itl_ms"]
    assert client["slo_attainment"] <= engine["slo_attainment"]
    assert client["clock"] == "client"
    assert "clock" not in engine
    assert "by the client's clock" in str(run("client"))


def test_tables_and_the_summary_agree() -> None:
    """Rows of requests are by the clock that was asked for, steps by the engine's."""
    engine, client = run("engine"), run("client")
    assert client.requests["ttft_ms"].mean() == pytest.approx(client.summary["mean_ttft_ms"])
    assert client.steps.equals(engine.steps)
    assert client.records.requests.first_token_s.tolist() == engine.records.requests.first_token_s.tolist()


def test_intervals_hold_the_figure_and_count_the_front_end_once() -> None:
    """The engine's clock has it in the upper end alone, for a client would see it; the client's has it in the figure."""
    engine, client = (run(clock).summary for clock in ("engine", "client"))
    low, high = client["confidence"]["intervals"]["mean_ttft_ms"]
    assert low < client["mean_ttft_ms"] < high
    above = high / client["mean_ttft_ms"]
    assert above < engine["confidence"]["intervals"]["mean_ttft_ms"][1] / engine["mean_ttft_ms"]


def test_explanations_have_the_front_end_as_a_part() -> None:
    """The parts of the slowest requests add up to what the table says of them, the client's wait among them."""
    found = explain(run("client"), tries=False).slowest
    requests = run("client").requests
    for name in ("ttft", "e2el"):
        slowest = requests[f"{name}_ms"][requests[f"{name}_ms"] >= found[name].p99_ms]
        assert found[name].mean_ms == pytest.approx(slowest.mean())
        assert LATE_MS[0] < found[name].parts_ms["front_end"] < LATE_MS[1]
    assert "front_end" not in found["tpot"].parts_ms
    assert "its client has it" in str(explain(run("client"), requests["request_id"][0]))


def test_a_folder_is_explained_by_its_clock() -> None:
    """A summary leads to the same clock again; one that does not name it has the engine's."""
    assert arguments_of(run("client").summary["arguments"])["clock"] == "client"
    assert "clock" not in run("engine").summary["arguments"]


def test_the_page_draws_what_a_client_sees() -> None:
    """And says that the phases of single requests are by the other clock."""
    assert (
        run("client").told.seen.merged.requests.first_token_s.tolist()
        == run("client").requests["first_token_s"].tolist()
    )
    page = run_page(run("client").told)
    assert "Phases are by the engine's clock" in str(page)
    assert "Phases are by" not in str(run_page(run("engine").told))


def test_searches_hold_limits_by_that_clock() -> None:
    """What a search makes of a candidate is what `simulate` says of it."""
    tried = objective("Llama-3.1-8B", "h100-sxm", "chat", limit=60, slo=[LIMIT], clock="client")({})
    assert tried["mean_ttft_ms"] == run("client").summary["mean_ttft_ms"]
    assert tried["slo_attainment"] == run("client").summary["slo_attainment"]


def test_a_stream_has_the_engines_clock() -> None:
    """Its sketch has no streams to count."""
    with pytest.raises(ConfigError, match="`clock` is given"):
        sim.simulate("Llama-3.1-8B", "h100-sxm", "chat", stream=True, clock="client")


def test_there_are_two_clocks() -> None:
    """Another name is not taken for one of them."""
    with pytest.raises(ConfigError, match="`clock` must be one of engine, client, got 'wall'"):
        sim.simulate("Llama-3.1-8B", "h100-sxm", "chat", limit=5, clock="wall")  # type: ignore[arg-type]
