"""A workload fitted to a trace: what is drawn from it is like the trace."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from sim.workload.arrivals import Gamma
from sim.workload.conversations import session_numbers
from sim.workload.describe import describe
from sim.workload.fit import LEAST, fit
from sim.workload.generate import generate
from sim.workload.lengths import Choice, Fixed, Geometric, Histogram, Lognormal
from sim.workload.rate_curve import Piece, Pieces
from sim.workload.readers import read_trace
from sim.workload.spec import WorkloadMix, WorkloadSpec
from sim.workload.spec_file import parse_spec, to_yaml
from sim.workload.trace import Trace
from sim.workload.waits import Exponential
from tests.shared import SHARED, needs_shared
from tests.workload.makers import make_trace

BURSTY = WorkloadSpec(
    request_rate=Pieces((Piece(2, 600), Piece(10, 300), Piece(1, 300))),
    arrivals=Gamma(0.4),
    prompt_tokens=Lognormal(600, 1, 8192),
    output_tokens=Lognormal(150, 0.8, 2048),
    length_correlation=0.5,
)
TALKS = WorkloadSpec(
    request_rate=4.0,
    duration_s=600,
    turns=Geometric(4),
    turn_gap_s=Exponential(20),
    opening_tokens=Lognormal(3000, 0.5, 16384),
    prompt_tokens=Lognormal(200, 0.7, 4096),
    prefix_tokens=1024,
    hash_block_size=64,
)


def test_lengths_rates_and_bursts_come_back() -> None:
    """4,500 requests: lengths agree within 0.03 (Kolmogorov-Smirnov), their ranks as much; so do rates, minute by minute."""
    trace = generate(BURSTY, 1)
    drawn = generate(fit(trace), 5)
    assert len(drawn) == len(trace)
    for own, found in ((trace.prompt_tokens, drawn.prompt_tokens), (trace.output_tokens, drawn.output_tokens)):
        assert stats.ks_2samp(own, found).statistic < 0.03
        assert found.mean() == pytest.approx(own.mean(), rel=0.03)
    correlation = stats.spearmanr(drawn.prompt_tokens, drawn.output_tokens).statistic
    assert correlation == pytest.approx(0.5, abs=0.05)
    minutes = np.arange(0, 1201, 60)
    by_minute = [np.histogram(one.arrival_s - trace.arrival_s[0], minutes)[0] for one in (trace, drawn)]
    assert np.corrcoef(by_minute)[0, 1] > 0.98
    gap_cvs = [describe(one).gap_cv for one in (trace, drawn)]
    assert gap_cvs[1] == pytest.approx(gap_cvs[0], rel=0.1)


@pytest.mark.parametrize("says_sessions", [True, False])
def test_sessions_come_back_by_name_and_by_prompts(says_sessions: bool) -> None:
    """2,000 turns behind a prefix of all: as many, as long, and repeating as much."""
    trace = generate(TALKS, 2)
    if not says_sessions:
        trace = make_trace(
            trace.arrival_s.tolist(),
            prompt_tokens=trace.prompt_tokens.tolist(),
            output_tokens=trace.output_tokens.tolist(),
            segments=trace.segments,
        )
    drawn = generate(fit(trace), 3)
    own, found = describe(trace), describe(drawn)
    assert found.num_requests == pytest.approx(own.num_requests, rel=0.05)
    assert found.duration_s == pytest.approx(own.duration_s, rel=0.02)
    assert found.prompt_tokens.mean == pytest.approx(own.prompt_tokens.mean, rel=0.07)
    assert found.max_prefix_cache_hit_rate == pytest.approx(own.max_prefix_cache_hit_rate, abs=0.05)


def test_who_opens_with_much_is_answered_in_few_words_again() -> None:
    """Of 4,000 turns, the rank correlation of a session's first prompt and its answers."""
    trace = generate(replace(TALKS, length_correlation=-0.5, output_tokens=Lognormal(150, 0.8, 2048)), 2)

    def correlation(of: Trace) -> float:
        assert of.session_id is not None
        sessions = session_numbers(of.session_id)
        first = of.prompt_tokens[np.unique(sessions, return_index=True)[1]][sessions]
        return float(stats.spearmanr(first, of.output_tokens).statistic)

    assert correlation(trace) == pytest.approx(-0.5, abs=0.05)
    assert correlation(generate(fit(trace), 3)) == pytest.approx(correlation(trace), abs=0.06)


def test_a_coarse_clock_comes_back() -> None:
    """Times in ticks of three seconds stay so, and as many come by one."""
    trace = generate(WorkloadSpec(3000, 3.0, tick_s=3.0), 1)
    drawn = generate(fit(trace), 2)
    assert set(np.mod(drawn.arrival_s, 3).tolist()) == {0}
    spread = [np.bincount((one.arrival_s / 3).astype(int)).std() for one in (trace, drawn)]
    assert spread[1] == pytest.approx(spread[0], rel=0.15)


@pytest.mark.parametrize("count", [1, 2, 3, 50])
def test_requests_that_come_at_once_do_so_again(count: int) -> None:
    """And a single request is one."""
    drawn = generate(fit(make_trace([5.0] * count, prompt_tokens=list(range(1, count + 1)))), 1)
    assert len(drawn) == count
    assert not drawn.arrival_s.any()


@pytest.mark.parametrize("spec", [BURSTY, TALKS, WorkloadSpec(2, 1.0), WorkloadSpec(3, 1.0, prompt_tokens=Fixed(7))])
def test_what_is_fitted_is_written_and_read(spec: WorkloadSpec) -> None:
    """As any workload; the same trace gives the same one."""
    trace = generate(spec, 1)
    workload = fit(trace)
    assert parse_spec(to_yaml(workload), "w.yaml", Path()).workload == workload == fit(trace)


def test_no_number_tells_of_a_few_requests() -> None:
    """Of 2,000 requests one has lengths that no other has; what all others have is kept."""
    trace = generate(TALKS, 1)
    prompts, outputs = trace.prompt_tokens.copy(), trace.output_tokens.copy()
    prompts[7], outputs[7] = 123_457, 99_991
    workload = fit(replace(trace, prompt_tokens=prompts, output_tokens=outputs, segments=None))
    text = to_yaml(workload)
    assert "123457" not in text
    assert "99991" not in text
    for spec in workload.clients if isinstance(workload, WorkloadMix) else (workload,):
        for lengths in (spec.prompt_tokens, spec.output_tokens, spec.opening_tokens):
            assert not isinstance(lengths, Histogram) or min(count for *_, count in lengths.bins) >= LEAST
        assert isinstance(spec.request_rate, Pieces)
        begun = [piece.rate * piece.duration_s / spec.turns.mean for piece in spec.request_rate.pieces if piece.rate]
        assert min(begun) > 0.99 * LEAST
        if isinstance(spec.turns, Choice):
            assert min(count for _, count in spec.turns.weights) >= LEAST
    assert "128-128" in text


@needs_shared
@pytest.mark.parametrize(
    ("name", "repeated"),
    [
        ("azure_llm_2023_conv.csv", None),
        ("azure_llm_2023_code.csv", None),
        ("mooncake_conversation.jsonl", 0.374),
        ("mooncake_synthetic_trace.jsonl.gz", 0.651),
    ],
)
def test_published_traces_are_matched(name: str, repeated: float | None) -> None:
    """Requests and mean lengths within 4 %, the busiest ten seconds within 40; what prompts repeat within four points."""
    trace = read_trace(SHARED / "traces" / name)
    own, found = describe(trace), describe(generate(fit(trace)))
    assert found.num_requests == pytest.approx(own.num_requests, rel=0.04)
    assert found.prompt_tokens.mean == pytest.approx(own.prompt_tokens.mean, rel=0.04)
    assert found.output_tokens.mean == pytest.approx(own.output_tokens.mean, rel=0.04)
    assert found.peak_rate_rps == pytest.approx(own.peak_rate_rps, rel=0.4)
    if repeated is not None:
        assert own.max_prefix_cache_hit_rate == pytest.approx(repeated, abs=0.001)
        assert found.max_prefix_cache_hit_rate == pytest.approx(repeated, abs=0.04)
