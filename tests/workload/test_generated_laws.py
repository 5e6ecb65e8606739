"""What is generated follows the laws that were asked for: Kolmogorov-Smirnov tests with stated sizes and seeds."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy import stats

from sim.errors import ConfigError
from sim.workload.arrivals import Arrivals, Constant, Gamma, Poisson, Weibull
from sim.workload.columns import Floats
from sim.workload.generate import generate
from sim.workload.lengths import Fixed, Geometric, Histogram, Lengths, Lognormal, ParetoTail, Uniform
from sim.workload.named import named_workload, workload_names
from sim.workload.rate_curve import Diurnal, Piece, Pieces, RampUp, Spike, Stages, num_due, times_due
from sim.workload.reuse import reusable_tokens
from sim.workload.spec import WorkloadMix, WorkloadSpec
from sim.workload.spec_file import changed
from sim.workload.waits import Exponential, FixedWait, LognormalWait, Waits

SIZE = 20_000
LEAST = 0.01  # the p-value, with these seeds, of a law that holds


def p_value(sample: object, law: object) -> float:
    return float(stats.kstest(sample, law).pvalue)


@pytest.mark.parametrize(
    ("arrivals", "law"),
    [
        (Poisson(), stats.expon(scale=0.1)),
        (Gamma(0.4), stats.gamma(0.4, scale=1 / (10 * 0.4))),
        (Weibull(0.6), stats.weibull_min(0.6, scale=0.1 / stats.weibull_min(0.6).mean())),
    ],
)
def test_gaps_follow_their_law(arrivals: Arrivals, law: stats.rv_continuous) -> None:
    """At 10 requests/s, 20,000 gaps; rescaling moves none by more than a per cent."""
    times = generate(WorkloadSpec(SIZE, 10.0, arrivals=arrivals), 1).arrival_s
    assert times[-1] == pytest.approx(SIZE / 10)
    gaps = np.diff(times, prepend=0.0)
    assert p_value(gaps, law.cdf) > LEAST
    assert p_value(1.05 * gaps, law.cdf) < LEAST


@pytest.mark.parametrize(
    ("lengths", "law"),
    [
        (Lognormal(600, 0.8, 10**6), stats.lognorm(0.8, scale=600)),
        (Uniform(101, 5100), stats.uniform(100.5, 5000)),
        (Geometric(40), stats.geom(1 / 40)),
    ],
)
def test_lengths_follow_their_law(lengths: Lengths, law: stats.rv_continuous) -> None:
    """20,000 of them, at the middle of each integer."""
    drawn = generate(WorkloadSpec(SIZE, prompt_tokens=lengths), 2).prompt_tokens
    above = 0.5 if not isinstance(lengths, Geometric) else 0.0
    steps = np.unique(drawn)
    shares = np.searchsorted(np.sort(drawn), steps, side="right") / SIZE
    assert np.abs(shares - law.cdf(steps + above)).max() < 1.63 / SIZE**0.5  # Kolmogorov's bound at 1 %


def test_a_tail_is_paretos_above_the_body() -> None:
    """5 % are above where it begins, and these are Pareto of exponent 1.5; below it they are lognormal."""
    tailed = ParetoTail(600, 0.8, 0.05, 1.5, 2**31 - 1)
    drawn = tailed.draw(4 * SIZE, np.random.default_rng(1))
    tail = drawn[drawn > tailed.begins_at]
    assert len(tail) / len(drawn) == pytest.approx(0.05, rel=0.05)
    assert p_value(tail / tailed.begins_at, stats.pareto(1.5).cdf) > LEAST
    assert np.median(drawn) == pytest.approx(600, rel=0.02)
    narrow = ParetoTail(600, 0, 0.05, 1.5, 2**31 - 1).draw(SIZE, np.random.default_rng(1))
    assert (narrow == 600).mean() == pytest.approx(0.95, abs=0.01)


def test_a_histogram_is_even_within_a_bin() -> None:
    """Weights between bins, all integers alike within one."""
    drawn = Histogram(((1, 10, 3.0), (100, 100, 1.0))).draw(SIZE, np.random.default_rng(0))
    assert (drawn == 100).mean() == pytest.approx(0.25, abs=0.01)
    counts = np.bincount(drawn[drawn < 100])[1:]
    assert stats.chisquare(counts).pvalue > LEAST


@pytest.mark.parametrize(
    ("waits", "law"),
    [(Exponential(5), stats.expon(scale=5)), (LognormalWait(2, 1.5, 1e9), stats.lognorm(1.5, scale=2))],
)
def test_waits_follow_their_law(waits: Waits, law: stats.rv_continuous) -> None:
    """20,000 of them; fixed ones are as they are."""
    assert p_value(waits.draw(SIZE, np.random.default_rng(0)), law.cdf) > LEAST
    assert set(FixedWait(3).draw(4, np.random.default_rng(0))) == {3}


@pytest.mark.parametrize("correlation", [-0.8, 0.3, 1.0])
def test_lengths_correlate_as_asked(correlation: float) -> None:
    """Spearman's coefficient within 0.02; each has the very lengths that it has without."""
    spec = WorkloadSpec(SIZE, prompt_tokens=Lognormal(600, 1, 10**6), output_tokens=Lognormal(200, 1, 10**6))
    paired = generate(changed(spec, {"length_correlation": correlation}))
    apart = generate(spec)
    assert stats.spearmanr(paired.prompt_tokens, paired.output_tokens).statistic == pytest.approx(correlation, abs=0.02)
    assert sorted(paired.output_tokens.tolist()) == sorted(apart.output_tokens.tolist())
    assert sorted(paired.prompt_tokens.tolist()) == sorted(apart.prompt_tokens.tolist())


@pytest.mark.parametrize("correlation", [-0.6, 0.3])
def test_answers_correlate_with_what_their_session_opens_with(correlation: float) -> None:
    """Spearman's coefficient within 0.03; prompts are what they are without, so that what opens a session still does."""
    spec = WorkloadSpec(
        SIZE,
        turns=Geometric(3),
        opening_tokens=Uniform(10_000, 90_000),
        output_tokens=Lognormal(200, 1, 10**6),
        hash_block_size=1024,
    )
    paired, apart = generate(changed(spec, {"length_correlation": correlation})), generate(spec)
    assert paired.session_id is not None
    openings: dict[str, int] = {}
    opening = [
        openings.setdefault(name, tokens)
        for name, tokens in zip(paired.session_id, paired.prompt_tokens.tolist(), strict=True)
    ]
    assert min(openings.values()) >= 10_000
    assert stats.spearmanr(opening, paired.output_tokens).statistic == pytest.approx(correlation, abs=0.03)
    assert sorted(paired.output_tokens.tolist()) == sorted(apart.output_tokens.tolist())


RATE = Pieces((Piece(5, 100), Piece(5, 50, 20), Piece(0, 30), Piece(20, 20, 0)))


def test_pieces_have_as_many_requests_as_they_say() -> None:
    """500, then a ramp of 625, none, and 200 on the way down; then again from the start."""
    spec = WorkloadSpec(request_rate=RATE)
    assert spec.count == 1325
    times = generate(WorkloadSpec(request_rate=RATE, arrivals=Constant(), duration_s=400)).arrival_s
    within = [int(((times > begin) & (times <= end)).sum()) for begin, end in pairwise((0, 100, 150, 180, 200, 300))]
    assert within == pytest.approx([500, 625, 0, 200, 500], abs=1)


def test_times_are_the_inverse_of_what_is_due() -> None:
    """At constant arrivals the k-th request comes when k are due, by the integral of the rate; spikes multiply it."""
    spikes = (Spike(60, 60, 3), Spike(10, 5, 0))
    due = np.arange(1.0, 2001.0)
    times = times_due(RATE, spikes, due)
    assert (np.diff(times) >= 0).all()
    assert [num_due(RATE, spikes, float(time)) for time in times[::97]] == pytest.approx(due[::97].tolist())
    assert num_due(RATE, spikes, 200) == pytest.approx(1325 - 25 + 2 * 200 + 2 * (5 * 20 + 20**2 * 0.3 / 2))
    assert not ((times > 10) & (times < 15)).any()


def test_a_day_has_its_peak_and_its_night() -> None:
    """A cosine: arrivals are spread by its integral (Kolmogorov-Smirnov), as many as a day has in the mean."""
    spec = WorkloadSpec(request_rate=Diurnal(mean=0.5, peak=0.9, peak_at_s=50_000), duration_s=86_400)
    assert spec.count == 43_200
    times = generate(spec, 3).arrival_s
    swing = 0.4 * 86_400 / (2 * np.pi)

    def due(time: Floats) -> Floats:
        phase = 2 * np.pi / 86_400
        requests: Floats = 0.5 * time + swing * (np.sin(phase * (time - 50_000)) + np.sin(phase * 50_000))
        return requests / spec.count

    assert p_value(times, due) > LEAST


def test_stages_are_those_of_inference_perf() -> None:
    """int(rate x duration) each, filling their time, a gap between them; the trace says which is whose."""
    spec = WorkloadSpec(request_rate=Stages((Piece(3, 20.5), Piece(10, 20)), gap_s=30))
    trace = generate(spec, 1)
    assert trace.stage is not None
    assert np.bincount(trace.stage).tolist() == [61, 200]
    first, second = (trace.arrival_s[trace.stage == stage] for stage in (0, 1))
    assert first[-1] == pytest.approx(61 / 3)
    assert (second[0] > 50.5, second[-1]) == (True, pytest.approx(70.5))


def test_popular_prefixes_follow_zipfs_law() -> None:
    """The k-th of five is asked for k times as seldom as the first."""
    spec = WorkloadSpec(SIZE, prefix_tokens=16, num_prefixes=5, prefix_zipf=1.0, prompt_tokens=Fixed(1))
    segments = generate(spec, 1).segments or ()
    shares = np.bincount([path[0][0] for path in segments]) / SIZE
    assert shares == pytest.approx(1 / np.arange(1, 6) / sum(1 / np.arange(1, 6)), abs=0.01)


def test_an_agents_turn_is_a_chain_of_calls() -> None:
    """Two turns of three calls a session: the first of a turn brings a message, the others what a tool said; each repeats
    the answers before it and waits for them.
    """
    spec = WorkloadSpec(
        12,
        turns=Fixed(2),
        calls=Fixed(3),
        prompt_tokens=Fixed(100),
        tool_tokens=Fixed(7),
        output_tokens=Fixed(10),
        think_time_s=FixedWait(60),
        tool_wait_s=FixedWait(2),
        request_rate=1e-3,
    )
    trace = generate(spec)
    assert trace.prompt_tokens.tolist() == [100, 117, 134, 244, 261, 278] * 2
    assert trace.think_time_s is not None
    assert trace.think_time_s.tolist() == [0, 2, 2, 60, 2, 2] * 2
    assert [round(gap) for gap in np.diff(trace.arrival_s[:6]).tolist()] == [2, 2, 60, 2, 2]
    assert trace.session_id == ("s0",) * 6 + ("s1",) * 6


def test_a_full_window_begins_anew_with_a_summary() -> None:
    """Prompts of 150, 260 and 370 tokens, then one of prefix, summary and message; nothing of it but the prefix was there."""
    spec = WorkloadSpec(
        4,
        turns=Fixed(4),
        prefix_tokens=48,
        prompt_tokens=Fixed(102),
        output_tokens=Fixed(8),
        max_context_tokens=400,
        summary_tokens=20,
        request_rate=1.0,
    )
    trace = generate(spec)
    assert trace.prompt_tokens.tolist() == [150, 260, 370, 170]
    assert trace.segments is not None
    third, fourth = trace.segments[2:]
    assert third[:3] == fourth[:3]
    assert {content for content, _ in third[3:]}.isdisjoint(content for content, _ in fourth[3:])
    assert generate(WorkloadSpec(1, turns=Fixed(2), max_context_tokens=400)).prompt_tokens.tolist() == [400]


def test_coding_agents_have_the_means_of_the_published_dataset() -> None:
    """3.95 turns a session, 7.83 calls a turn, 67,818 prompt and 527 output tokens a call, 85.7 % repeated: within 3 % over
    6,000 calls, sessions and turns within three times the spread that so few have.
    """
    spec = named_workload("agentic").workload
    assert isinstance(spec, WorkloadSpec)
    trace = generate(changed(spec, {"num_requests": 6_000}), 7)
    num_sessions = len(set(trace.session_id or ()))
    assert 6_000 / num_sessions == pytest.approx(3.95 * 7.83, rel=3 * num_sessions**-0.5)
    assert spec.calls.mean == 7.83
    assert spec.turns.mean == 3.95
    assert trace.prompt_tokens.mean() == pytest.approx(67_818, rel=0.03)
    assert trace.output_tokens.mean() == pytest.approx(527, rel=0.03)
    assert reusable_tokens(trace) / trace.prompt_tokens.sum() == pytest.approx(0.857, abs=0.01)


@pytest.mark.parametrize("name", workload_names())
def test_each_named_workload_is_drawn(name: str) -> None:
    """Fifty of its requests and more; the same seed gives the same ones."""
    workload = named_workload(name).workload
    assert not isinstance(workload, WorkloadMix)
    few = changed(workload, {"num_requests": 50})
    assert generate(few, 1).arrival_s.tolist() == generate(few, 1).arrival_s.tolist()


def test_a_session_may_open_with_something_else() -> None:
    """A document before the first question; nothing comes after `duration_s`, though sessions had more to say."""
    spec = WorkloadSpec(
        request_rate=1.0,
        duration_s=100,
        turns=Fixed(4),
        turn_gap_s=FixedWait(30),
        opening_tokens=Fixed(5000),
        prompt_tokens=Fixed(10),
        output_tokens=Fixed(1),
        tick_s=0.5,
    )
    trace = generate(spec, 2)
    assert sorted(set(trace.prompt_tokens.tolist())) == [5000, 5011, 5022, 5033]
    assert trace.arrival_s[-1] <= 100
    assert 40 < len(trace) < spec.count == 100
    assert not np.mod(trace.arrival_s, 0.5).any()


def test_a_prompt_may_have_several_answers() -> None:
    """Drawn for each; one where nothing is said, and never more than vLLM takes."""
    assert generate(WorkloadSpec(5)).n is None
    drawn = generate(WorkloadSpec(2000, n=Uniform(1, 4))).n
    assert drawn is not None
    assert stats.chisquare(np.bincount(drawn)[1:]).pvalue > LEAST
    with pytest.raises(ConfigError, match="`n` must be at most 16,384 answers to a prompt, got 20,000"):
        generate(WorkloadSpec(5, n=Fixed(20_000)))


def test_exact_workloads_leave_to_chance_the_order_alone() -> None:
    """As many in each piece as are due, ramps and spikes too, and lengths as often as they should be; bursts are within pieces."""
    rate = Pieces((Piece(5, 20), Piece(0, 10), Piece(1, 20, 9)))
    lengths = Histogram(((10, 10, 1.0), (100, 199, 2.0), (5000, 5000, 1.0)))
    spec = WorkloadSpec(
        request_rate=rate,
        duration_s=100,
        arrivals=Gamma(0.3),
        spikes=(Spike(60, 5, 3),),
        exact=True,
        prompt_tokens=lengths,
        output_tokens=lengths,
    )
    drawn = [generate(spec, seed) for seed in (1, 2)]
    edges = [0, 20, 30, 50, 60, 65, 70, 80, 100]
    for trace in drawn:
        assert np.histogram(trace.arrival_s, edges)[0].tolist() == [100, 0, 100, 50, 75, 25, 0, 100]
        for tokens in (trace.prompt_tokens, trace.output_tokens):
            shares = [np.mean(tokens == 10), np.mean((tokens >= 100) & (tokens < 200)), np.mean(tokens == 5000)]
            assert shares == pytest.approx([0.25, 0.5, 0.25], abs=0.003)
            assert tokens.mean() == pytest.approx(0.25 * 10 + 0.5 * 149.5 + 0.25 * 5000, rel=0.01)
    assert drawn[0].prompt_tokens.tolist() != drawn[1].prompt_tokens.tolist()
    assert np.diff(drawn[0].arrival_s[:100]).std() > 1.3 * np.diff(drawn[0].arrival_s[:100]).mean()


def test_turns_that_look_to_the_end_come_the_sooner_to_the_nearer_it_is() -> None:
    """Each gap takes an exponential share of what is left, by its logarithm, and nobody is cut short."""
    spec = WorkloadSpec(
        request_rate=40.0, duration_s=100, turns=Fixed(4), turn_gap_of_rest=Exponential(0.5), exact=True
    )
    trace = generate(spec, 1)
    assert len(trace) == 4000
    assert trace.session_id is not None
    order = np.lexsort((trace.arrival_s, np.array(trace.session_id)))
    left_s = 100 - trace.arrival_s[order].reshape(-1, 4)
    assert left_s.min() >= 0
    left_s = left_s[left_s[:, 0] > 1]
    taken = np.log(left_s[:, :-1] / left_s[:, 1:])
    assert p_value(taken.ravel(), stats.expon(scale=0.5).cdf) > LEAST


@pytest.mark.parametrize(
    "others",
    [{"num_requests": 9}, {"duration_s": 9.0, "think_time_s": FixedWait(1)}, {"duration_s": 9.0, "calls": Fixed(2)}],
)
def test_gaps_of_what_is_left_need_an_end_and_arrivals(others: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="`turn_gap_of_rest` needs `duration_s`, and gaps between arrivals"):
        WorkloadSpec(turns=Fixed(3), turn_gap_of_rest=Exponential(0.5), **others)


@pytest.mark.parametrize(
    "lengths", [Lognormal(600, 1, 8192), Uniform(1, 99), Geometric(5), ParetoTail(600, 1, 0.1, 3, 10**6)]
)
def test_lengths_drawn_evenly_vary_less_in_the_mean(lengths: Lengths) -> None:
    """Less than half as much, of the same law."""
    means = [
        [draw(100, np.random.default_rng(seed)).mean() for seed in range(200)]
        for draw in (lengths.draw, lengths.draw_evenly)
    ]
    assert np.std(means[1]) < np.std(means[0]) / 2
    assert np.mean(means[1]) == pytest.approx(np.mean(means[0]), rel=0.03)


@pytest.mark.parametrize("strategy", ["linear", "exponential"])
@pytest.mark.parametrize("arrivals", [Gamma(0.5), Poisson(), Weibull(0.7), Constant()])
def test_a_ramp_up_is_the_benchmarks(strategy: str, arrivals: Arrivals) -> None:
    """The rate follows the number of the request, as `_get_current_request_rate` of vllm bench serve has it, and nothing is rescaled."""
    ramp = RampUp(strategy, 2, 50)
    found = generate(WorkloadSpec(4000, ramp, arrivals=arrivals), 1).arrival_s
    gaps = np.diff(found, prepend=0.0)
    progress = np.arange(4000) / 3999
    rates = 2 + 48 * progress if strategy == "linear" else 2 * 25**progress
    assert (gaps * rates).mean() == pytest.approx(1, abs=0.06)
    for quarter in np.split(gaps * rates, 4):
        assert quarter.mean() == pytest.approx(1, abs=0.12)
    if arrivals == Constant():
        assert gaps == pytest.approx(1 / rates)
    if arrivals == Gamma(0.5):
        assert p_value(gaps * rates, stats.gamma(0.5, scale=2).cdf) > LEAST


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RampUp("steep", 1, 2), "`ramp_up_strategy` must be"),
        (lambda: RampUp("linear", 0, 2), "needs 0 < ramp_up_start_rps <= ramp_up_end_rps"),
        (
            lambda: WorkloadSpec(request_rate=RampUp("linear", 1, 2), duration_s=5.0),
            "a ramp-up is over a number of requests",
        ),
    ],
)
def test_a_ramp_up_that_is_none(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
