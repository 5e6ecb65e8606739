"""Synthetic traces: what `vllm bench serve` would send, and what was asked for."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import ConfigError
from sim.workload.arrivals import POISSON, Arrivals, Constant, Gamma, arrival_times, parse_arrivals
from sim.workload.describe import describe
from sim.workload.generate import generate
from sim.workload.lengths import (
    Choice,
    Fixed,
    Geometric,
    Lognormal,
    Uniform,
    parse_lengths,
)
from sim.workload.named import named_workload
from sim.workload.reuse import reusable_tokens
from sim.workload.spec import WorkloadSpec


@given(st.integers(1, 500), st.floats(0.01, 1e4), st.floats(0.05, 20), st.integers(0, 2**32))
def test_the_last_request_is_sent_at_n_over_the_rate(count: int, rate: float, burstiness: float, seed: int) -> None:
    """Times never fall, none is before the first gap, and the last is rescaled to N/R."""
    times = arrival_times(Gamma(burstiness), count, rate, np.random.default_rng(seed))
    assert times[-1] == pytest.approx(count / rate)
    assert times[0] >= 0
    assert (np.diff(times) >= 0).all()


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_vary_as_burstiness_says(burstiness: float) -> None:
    """Gamma gaps of shape b have a coefficient of variation of 1/sqrt(b): within 3 % over 20,000."""
    gaps = np.diff(Gamma(burstiness).times(20_000, 10.0, np.random.default_rng(1)))
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.03)


def test_constant_arrivals_are_evenly_apart() -> None:
    """Whatever the seed; sessions begin so as well."""
    spec = WorkloadSpec(num_requests=4, request_rate=2.0, arrivals=Constant())
    assert generate(spec, 1).arrival_s.tolist() == generate(spec, 2).arrival_s.tolist() == [0.5, 1.0, 1.5, 2.0]
    turns = generate(replace(spec, num_requests=200, turns=Geometric(4.0)))
    sessions = turns.session_id or ()
    firsts = [turns.arrival_s[sessions.index(name)] for name in set(sessions)]
    assert np.diff(sorted(firsts)) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("text", "arrivals"), [("gamma", POISSON), ("gamma:0.5", Gamma(0.5)), ("constant", Constant())]
)
def test_arrivals_are_written_with_their_options(text: str, arrivals: Arrivals) -> None:
    """As lengths are."""
    assert parse_arrivals(text) == arrivals


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "gama:1",
            r"^arrivals must be gamma:burstiness, poisson, weibull:shape or constant, got 'gama:1'\. Did you mean gamma\?",
        ),
        (
            "constant:3",
            "^the arrivals 'constant:3' cannot be read; write gamma:burstiness, poisson, weibull:shape or constant",
        ),
        ("gamma:few", "^the arrivals 'gamma:few' cannot be read"),
        ("gamma:0", "^`burstiness` must be finite and at least 0.001, got 0"),
        ("gamma:inf", "^`burstiness` must be finite"),
        ("gamma:nan", "^`burstiness` must be finite"),
    ],
)
def test_bad_arrivals_are_refused(text: str, message: str) -> None:
    """What is wrong with them, and how they are written."""
    with pytest.raises(ConfigError, match=message):
        parse_arrivals(text)


def test_an_infinite_rate_sends_all_at_once() -> None:
    """`--request-rate inf` is a burst at 0."""
    assert not generate(WorkloadSpec(num_requests=5, request_rate=float("inf"))).arrival_s.any()


def test_the_seed_decides_and_streams_do_not_mix() -> None:
    """Equal seeds give equal traces; another output distribution leaves arrivals and prompts as they were."""
    spec = WorkloadSpec(num_requests=50, prompt_tokens=Uniform(1, 999), output_tokens=Uniform(1, 99))
    first, again, other = generate(spec, 3), generate(spec, 3), generate(spec, 4)
    assert first.arrival_s.tolist() == again.arrival_s.tolist() != other.arrival_s.tolist()
    changed = generate(replace(spec, output_tokens=Lognormal(50, 1.0, 200)), 3)
    assert changed.arrival_s.tolist() == first.arrival_s.tolist()
    assert changed.prompt_tokens.tolist() == first.prompt_tokens.tolist()


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("600", Fixed(600)),
        ("uniform:100,900", Uniform(100, 900)),
        ("lognormal:600, 0.8, 8192", Lognormal(600, 0.8, 8192)),
        ("choice:512=0.3,1024=0.7", Choice(((512, 0.3), (1024, 0.7)))),
    ],
)
def test_lengths_are_written_briefly(text: str, lengths: object) -> None:
    """The written forms and what they mean."""
    assert parse_lengths(text) == lengths


def test_lengths_follow_their_distribution() -> None:
    """Both ends of a uniform are drawn, a lognormal has its median and stops at its maximum, weights hold."""
    rng = np.random.default_rng(0)
    uniform, lognormal = Uniform(3, 5).draw(3000, rng), Lognormal(600, 1.0, 2000).draw(3000, rng)
    assert np.unique(uniform).tolist() == [3, 4, 5]
    assert np.median(lognormal) == pytest.approx(600, rel=0.1)
    assert (lognormal.min() >= 1, lognormal.max()) == (True, 2000)
    assert (Choice(((1, 3.0), (9, 1.0))).draw(3000, rng) == 1).mean() == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", "a length must be from 1"),
        ("-3", "a length must be from 1"),
        ("4.5", "'4.5' cannot be read; write 600, uniform"),
        ("", "'' cannot be read"),
        ("uniform:5", "'uniform:5' cannot be read"),
        ("uniform:9,5", "low <= high, got 9 and 5"),
        ("unifrom:1,5", "unknown kind 'unifrom'.*Did you mean uniform"),
        ("lognormal:0,1,5", "need 1 <= median"),
        ("lognormal:5,nan,9", "sigma from 0 to 10, got 5.0, nan"),
        ("choice:5", "cannot be read"),
        ("choice:5=0", "the weight of length 5 must be above 0"),
        ("choice:5=1e308", "the weight of length 5 must be above 0, and from 1e-15 to 1e"),
        ("choice:5=nan", "the weight of length 5"),
    ],
)
def test_bad_lengths_are_refused(text: str, message: str) -> None:
    """Each slip in a distribution has its sentence."""
    with pytest.raises(ConfigError, match=message):
        parse_lengths(text)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_requests", 0),
        ("request_rate", 0.0),
        ("request_rate", -1.0),
        ("request_rate", float("nan")),
        ("request_rate", 1e-300),
        ("prefix_tokens", -1),
        ("num_prefixes", 0),
        ("hash_block_size", 0),
        ("prefix_zipf", -1.0),
        ("length_correlation", 1.5),
        ("duration_s", -1.0),
    ],
)
def test_bad_workloads_are_refused(field: str, value: Any) -> None:
    """Each field of a workload names its range."""
    with pytest.raises(ConfigError, match=f"`{field}` must be"):
        WorkloadSpec(**{field: value})


def test_prompts_that_grow_past_a_trace_are_refused() -> None:
    """A prefix on top of a longest prompt is more than a trace holds."""
    with pytest.raises(ConfigError, match="prompts of 2,147,483,648 tokens, more than a trace holds"):
        generate(WorkloadSpec(num_requests=1, prompt_tokens=Fixed(2**31 - 1), prefix_tokens=1))


def test_prefixes_are_shared_within_their_group() -> None:
    """With two prefixes of 64 tokens, all but the first request of each group find 64 tokens in a cache."""
    trace = generate(WorkloadSpec(num_requests=40, prompt_tokens=Fixed(10), prefix_tokens=64, num_prefixes=2))
    assert set(trace.prompt_tokens.tolist()) == {74}
    assert reusable_tokens(trace) == 38 * 64
    assert trace.session_id is None


def test_a_prefix_that_ends_inside_a_block_shares_whole_blocks() -> None:
    """70 tokens of prefix are four shared blocks of 16."""
    trace = generate(WorkloadSpec(num_requests=3, prompt_tokens=Fixed(10), prefix_tokens=70))
    assert reusable_tokens(trace) == 2 * 64


def test_turns_repeat_what_was_said() -> None:
    """Each turn's prompt is the last one's, its answer and the new message; its blocks begin with the last one's."""
    spec = WorkloadSpec(
        200, prompt_tokens=Uniform(1, 50), output_tokens=Uniform(1, 50), prefix_tokens=20, turns=Geometric(4)
    )
    trace = generate(spec, 7)
    assert trace.session_id is not None
    assert trace.segments is not None
    assert 25 < len(set(trace.session_id)) < 80
    last: dict[str, int] = {}
    for row, session in enumerate(trace.session_id):
        if session in last:
            before = last[session]
            grown = trace.prompt_tokens[row] - trace.prompt_tokens[before] - trace.output_tokens[before]
            assert 1 <= grown <= 50
            ids = [content for content, _ in trace.segments[before]]
            assert [content for content, _ in trace.segments[row]][: len(ids)] == ids
        last[session] = row
    assert (np.diff(trace.arrival_s) >= 0).all()


def test_plain_workloads_share_nothing() -> None:
    """Without prefix and turns there are no segments to follow."""
    assert generate(WorkloadSpec(num_requests=2)).segments is None


@pytest.mark.parametrize(
    ("name", "rate", "mean_sequence", "longest"),
    [("chatbot", 100, 1177.6, 2048), ("batch_inference", 10, 1740.8, 4096), ("interactive", 50, 512, 1024)],
)
def test_profiles_have_the_designs_rates_and_lengths(
    name: str, rate: float, mean_sequence: float, longest: int
) -> None:
    """Mean sequence length within 3 % of the design's distribution over 5,000 requests, the longest exactly."""
    spec = named_workload(name).workload
    assert isinstance(spec, WorkloadSpec)
    trace = generate(replace(spec, num_requests=5000))
    sequences = trace.prompt_tokens + trace.output_tokens
    assert describe(trace).mean_rate_rps == pytest.approx(rate, rel=0.01)
    assert sequences.mean() == pytest.approx(mean_sequence, rel=0.03)
    assert sequences.max() == longest


def test_an_unknown_profile_suggests_the_nearest() -> None:
    """A slip in a profile's name."""
    with pytest.raises(ConfigError, match=r"'chatbott' is unknown; .* Did you mean chatbot"):
        named_workload("chatbott")


def test_bundled_traces_are_what_their_script_makes(tmp_path: Path) -> None:
    """`traces/make.py` writes the files of that folder again, byte for byte."""
    import runpy

    folder = Path(__file__).resolve().parents[2] / "traces"
    script = runpy.run_path(str(folder / "make.py"))
    script["make"](tmp_path)
    made = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    kept = {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix in {".csv", ".jsonl"}}
    assert made == kept
