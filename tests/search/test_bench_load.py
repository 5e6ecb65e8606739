"""The line that checks an answer sends the very load that the figures beside it are for."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sim
from sim.search import bench_load as loads
from sim.search.bench_load import Verification, bench_load, verification
from sim.specs.engine import EngineConfig
from sim.specs.releases import parse_version
from sim.workload.arrivals import Gamma
from sim.workload.generate import generate
from sim.workload.lengths import Geometric, Lognormal
from sim.workload.prompt_text import WORDS, prompt_text
from sim.workload.readers import read_trace
from sim.workload.spec import WorkloadSpec
from sim.workload.trace import Trace
from tests.search import vllm_bench
from tests.search.makers import STEPS, gpu, make_scenario, make_trace, model

VERSIONS = ("0.33.0", "0.28.0", "0.27.1", "0.14.0", "0.13.0", "0.11.1", "0.11.0", "0.10.0", "0.9.2")
ENGINE = EngineConfig(max_model_len=4096, max_num_seqs=8)
CHECKED = ("p99_ttft_ms", "mean_ttft_ms", "mean_tpot_ms", "p99_e2el_ms", "output_throughput", "total_input_tokens")


def shared_trace() -> Trace:
    """Conversations that begin with one of two prefixes, bursty."""
    spec = WorkloadSpec(
        num_requests=60,
        request_rate=6.0,
        arrivals=Gamma(burstiness=0.4),
        prompt_tokens=Lognormal(100, 1.0, 800),
        output_tokens=Lognormal(20, 1.0, 100),
        prefix_tokens=64,
        num_prefixes=2,
        turns=Geometric(2),
    )
    return generate(spec, seed=3)


def replayed(command: str, version: str) -> dict[str, Any]:
    """The printed line, run by a model of the bench against the simulated server."""
    sent = vllm_bench.load(command, parse_version(version))
    return sim.simulate(model(), gpu(), sent, engine=ENGINE, vllm_version=version, step_time_model=STEPS).summary


def assert_same(forecast: dict[str, Any], found: dict[str, Any]) -> None:
    assert {key: found[key] for key in CHECKED} == pytest.approx({key: forecast[key] for key in CHECKED}, rel=1e-9)


def checked(trace: Trace, version: str, dataset: Path) -> Verification:
    """The line for a deployment, its file written."""
    scenario = make_scenario(trace, slo=("ttft_p99=2s",), base=ENGINE, vllm_version=version)
    check = verification(scenario, scenario.deploy_fleet({}), trace, dataset)
    check.load.write(dataset)
    return check


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("trace", [make_trace(most=600), shared_trace()], ids=["private", "shared"])
def test_the_line_replayed_gives_the_figures_beside_it(trace: Trace, version: str, tmp_path: Path) -> None:
    """In each version's way: token ids and arrival times, or text and arrivals that the bench draws."""
    check = checked(trace, version, tmp_path / "load.jsonl")
    assert_same(check.metrics, replayed(check.command, version))


@pytest.mark.parametrize("version", ["0.33.0", "0.15.1"])
def test_the_line_of_capacity_replayed_gives_the_figures_beside_it(version: str, tmp_path: Path) -> None:
    """At the highest rate; where arrivals are kept, and nobody waits for answers, these are the figures of that rate themselves."""
    dataset = tmp_path / "load.jsonl"
    answer = sim.capacity(
        model(), gpu(), replace(shared_trace(), session_id=None), slo=["ttft_p99=2s"], engine=ENGINE, vllm_version=version,
        step_time_model=STEPS, bench_dataset=dataset, intervals=False,
    )  # fmt: skip
    assert answer.load is not None
    answer.load.write(dataset)
    assert_same(answer.summary["verify"]["metrics"], replayed(answer.summary["bench_command"], version))
    if version == "0.33.0":
        assert_same(answer.summary["metrics"], answer.summary["verify"]["metrics"])


def test_the_line_of_optimize_replayed_gives_the_figures_beside_it(tmp_path: Path) -> None:
    """Those of the winner on the whole trace, where arrivals are kept."""
    dataset = tmp_path / "it's a load.jsonl"
    answer = sim.optimize(
        model(), gpu(), replace(shared_trace(), session_id=None), space={"max_num_batched_tokens": [128, 4096]}, engine=ENGINE,
        step_time_model=STEPS, bench_dataset=dataset, intervals=False,
    )  # fmt: skip
    answer.load.write(dataset)
    found = sim.simulate(
        model(), gpu(), vllm_bench.load(answer.best["bench_command"], (0, 33, 0)), step_time_model=STEPS,
        engine=replace(ENGINE, max_num_batched_tokens=answer.best["engine"].get("max_num_batched_tokens")),
    ).summary  # fmt: skip
    assert_same(answer.best["verify"]["metrics"], found)
    assert_same(answer.best["metrics"], found)


def test_a_load_that_keeps_its_times_is_a_trace(tmp_path: Path) -> None:
    """`servecast simulate --trace` reads the dataset as it is; what prompts share is what the trace shares."""
    trace = shared_trace()
    load = bench_load(trace, "0.33.0")
    load.write(tmp_path / "load.jsonl")
    read = read_trace(tmp_path / "load.jsonl")
    assert list(read.segments or ()) == load.trace.segments
    assert read.arrival_s.tolist() == load.trace.arrival_s.tolist()
    assert [len(set(row)) for row in read.segments or ()] == [len(set(row)) for row in trace.segments or ()]


def test_sharing_survives_prompts_of_a_block_each() -> None:
    """Two prompts of one large block with one id are equal as far as both go; whole KV blocks stay equal."""
    trace = replace(
        make_trace(2), prompt_tokens=np.array([300, 400]), segments=[((7, 300),), ((7, 400),)]
    )  # fmt: skip
    first, second = bench_load(trace, "0.33.0").trace.segments or ()
    assert first[:18] == second[:18]
    assert first[18] != second[18]


def test_what_the_bench_cannot_send_is_said() -> None:
    """Priorities, lengths of their own, and more than a file should hold."""
    urgent = replace(make_trace(3), priority=np.array([0, 1, 0]))
    assert bench_load(urgent, "0.33.0").notes == ("the bench sends no priorities",)
    (note,) = bench_load(replace(make_trace(3), session_id=("a", "b", "a")), "0.33.0").notes
    assert note.startswith("the bench knows no sessions")
    (note,) = bench_load(replace(make_trace(3), stage=np.array([0, 0, 1])), "0.33.0").notes
    assert note == "the bench does not wait for a stage to drain"
    (note,) = bench_load(replace(make_trace(3), max_concurrency=np.array([2, 2, 2])), "0.33.0").notes
    assert note == "the bench has one limit of requests in flight for all (`--max-concurrency`)"
    assert any("one output length" in note for note in bench_load(make_trace(), "0.12.0").notes)
    assert any("random prompts only" in note for note in bench_load(make_trace(), "0.8.5").notes)


def test_a_large_trace_is_cut_to_its_first_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """By number, and by tokens where they are written as text; never to nothing."""
    trace = make_trace(60)
    monkeypatch.setattr(loads, "MOST_PROMPTS", 40)
    assert len(bench_load(trace, "0.33.0").trace) == 40
    assert "the first 40 of 60 requests" in bench_load(trace, "0.33.0").notes
    monkeypatch.setattr(loads, "MOST_TEXT_TOKENS", int(trace.prompt_tokens[:7].sum()))
    assert len(bench_load(trace, "0.20.0").trace) == 7
    monkeypatch.setattr(loads, "MOST_TEXT_TOKENS", 1)
    assert len(bench_load(trace, "0.20.0").trace) == 1


def test_requests_that_come_at_once_are_sent_at_once() -> None:
    """A rate of `inf`, in every version."""
    trace = replace(make_trace(5), arrival_s=np.full(5, 3.0))
    for version in VERSIONS:
        assert bench_load(trace, version).trace.arrival_s.tolist() == [0.0] * 5


def test_text_has_a_word_a_token_and_shares_what_is_shared() -> None:
    """Words are not repeated in the list, and blocks of different contents differ within a few words."""
    assert len(set(WORDS.tolist())) == len(WORDS)
    whole, part = prompt_text(((5, 16), (6, 16), (7, 3))), prompt_text(((5, 16), (6, 9)))
    assert (len(whole.split()), len(part.split())) == (35, 25)
    assert whole.startswith(part + " ")
    starts = {tuple(prompt_text(((content, 16),)).split()[:6]) for content in range(20_000)}
    assert len(starts) == 20_000
