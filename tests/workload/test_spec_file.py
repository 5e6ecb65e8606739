"""Workloads as YAML: what a file says, what is refused and where, and that what is written is read again."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import TraceError
from sim.workload.arrivals import Constant, Gamma, Poisson, Weibull
from sim.workload.generate import generate
from sim.workload.lengths import Choice, Counts, Fixed, Geometric, Histogram, Lengths, Lognormal, ParetoTail, Uniform
from sim.workload.rate_curve import Diurnal, Piece, Pieces, RampUp, RequestRate, Spike, Stages
from sim.workload.readers import read_trace
from sim.workload.spec import Workload, WorkloadMix, WorkloadSpec
from sim.workload.spec_file import parse_spec, to_yaml
from sim.workload.waits import Exponential, FixedWait, LognormalWait, Waits
from tests.properties import examples


def read(text: str, folder: Path = Path()) -> Workload:
    return parse_spec(text, "w.yaml", folder).workload


def single(text: str, folder: Path = Path()) -> WorkloadSpec:
    found = read(text, folder)
    assert isinstance(found, WorkloadSpec)
    return found


def mix(text: str) -> tuple[WorkloadSpec, ...]:
    found = read(text)
    assert isinstance(found, WorkloadMix)
    return found.clients


def test_a_file_has_the_fields_of_a_workload() -> None:
    """Lengths, waits and arrivals in the forms that flags take."""
    text = """
num_requests: 20
request_rate: 2.5
arrivals: weibull:0.7
prompt_tokens: lognormal:600,0.8,8192
output_tokens: pareto:200,0.5,0.05,1.5,4096
turns: geometric:4
think_time_s: lognormal:10,1,600
lora_modules: [a, b]
"""
    assert single(text) == WorkloadSpec(
        num_requests=20,
        request_rate=2.5,
        arrivals=Weibull(0.7),
        prompt_tokens=Lognormal(600, 0.8, 8192),
        output_tokens=ParetoTail(200, 0.5, 0.05, 1.5, 4096),
        turns=Geometric(4),
        think_time_s=LognormalWait(10, 1, 600),
        lora_modules=("a", "b"),
    )


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("prompt_tokens: 600", Fixed(600)),
        ("prompt_tokens: [7, 9, 7]", Choice(((7, 2.0), (9, 1.0)))),
        ("prompt_tokens: {512: 0.3, 1024: 1}", Choice(((512, 0.3), (1024, 1.0)))),
        ("prompt_tokens: {1-256: 0.3, 512: 1}", Histogram(((1, 256, 0.3), (512, 512, 1.0)))),
        ("prompt_tokens: file:lengths.txt", Choice(((3, 1.0), (5, 2.0)))),
    ],
)
def test_lengths_may_be_counted(text: str, lengths: Lengths, tmp_path: Path) -> None:
    """A list, a mapping to weights or to weights of ranges, a file beside the workload."""
    (tmp_path / "lengths.txt").write_text("5\n3\n5\n")
    assert single(text, tmp_path).prompt_tokens == lengths


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("request_rate: inf", float("inf")),
        (
            "request_rate: [{rate: 5, duration_s: 60}, {rate: 5, to_rate: 9, duration_s: 10}]",
            Pieces((Piece(5, 60), Piece(5, 10, 9))),
        ),
        ("request_rate: {mean: 5, peak: 9, peak_at_s: 3600}", Diurnal(5, 9, 3600)),
        (
            "request_rate: {stages: [{rate: 5, duration_s: 60}, {rate: 9, duration_s: 60}], gap_s: 30}",
            Stages((Piece(5, 60), Piece(9, 60)), 30),
        ),
    ],
)
def test_a_rate_may_change(text: str, rate: RequestRate) -> None:
    """Pieces, days and stages."""
    assert single(text).request_rate == rate


def test_the_benchs_names_mean_the_same() -> None:
    """Parameters of `vllm bench serve` and of its datasets."""
    text = """
dataset_name: random
num_prompts: 30
burstiness: 0.5
random_input_len: 1001
random_output_len: 10
random_range_ratio: 0.25
random_prefix_len: 64
"""
    assert single(text) == WorkloadSpec(
        num_requests=30,
        arrivals=Gamma(0.5),
        prompt_tokens=Uniform(750, 1252),
        output_tokens=Uniform(7, 13),
        prefix_tokens=64,
    )
    repeated = single("dataset_name: prefix_repetition\nprefix_repetition_num_prefixes: 4")
    assert (repeated.prefix_tokens, repeated.num_prefixes) == (256, 4)
    assert (repeated.prompt_tokens, repeated.output_tokens) == (Fixed(256), Fixed(128))
    assert single("dataset_name: sonnet").prompt_tokens == Fixed(350)
    assert single("dataset_name: sharegpt\nsharegpt_output_len: 9").output_tokens == Fixed(9)


def test_sharegpt_has_the_means_of_vllms_own_run() -> None:
    """246 prompt and 235 output tokens, within 3 % over 20,000."""
    trace = generate(replace(single("dataset_name: sharegpt"), num_requests=20_000))
    assert trace.prompt_tokens.mean() == pytest.approx(246, rel=0.03)
    assert trace.output_tokens.mean() == pytest.approx(235, rel=0.03)


def test_classes_share_the_requests() -> None:
    """Each is a workload by itself whose other fields are those above; counts add up, rates are parts of the whole."""
    first, second, own = mix("""
num_requests: 10
request_rate: 6
output_tokens: 7
clients:
  - {name: paid, share: 1, priority: -1}
  - {name: free, share: 2, prompt_tokens: 50, prefix_tokens: 32}
  - {name: nightly, request_rate: 1, duration_s: 30}
""")
    assert (first.num_requests, second.num_requests, own.count) == (3, 7, 30)
    assert (first.request_rate, second.request_rate) == (2, 4)
    assert {first.output_tokens, second.output_tokens, own.output_tokens} == {Fixed(7)}
    assert (first.priority, second.priority, second.prompt_tokens) == (-1, None, Fixed(50))


def test_classes_come_together_in_order_of_arrival() -> None:
    """Names say whose a request is; what one class has and another has not, is nothing there."""
    text = """
num_requests: 40
clients:
  - {name: paid, share: 1, priority: -1, turns: geometric:3, think_time_s: 2}
  - {name: free, share: 1, lora_modules: [sql]}
"""
    trace = generate(read(text), 5)
    assert (trace.arrival_s[1:] >= trace.arrival_s[:-1]).all()
    assert len(set(trace.request_id)) == 40
    assert trace.priority is not None
    assert trace.lora_name is not None
    assert trace.session_id is not None
    assert trace.segments is not None
    for row, name in enumerate(trace.request_id):
        is_paid = name.startswith("paid-r")
        assert (trace.priority[row], trace.lora_name[row]) == ((-1, "") if is_paid else (0, "sql"))
        assert is_paid or trace.session_id[row] == name
        assert sum(tokens for _, tokens in trace.segments[row]) == trace.prompt_tokens[row]


def test_a_class_is_drawn_the_same_whatever_follows_it() -> None:
    """Its streams are its own: another class behind it changes none of its requests."""
    alone = generate(WorkloadMix((WorkloadSpec(num_requests=20, name="a", prompt_tokens=Uniform(1, 99)),)), 3)
    other = WorkloadSpec(num_requests=20, name="b")
    both = generate(WorkloadMix((WorkloadSpec(num_requests=20, name="a", prompt_tokens=Uniform(1, 99)), other)), 3)
    rows = [row for row, name in enumerate(both.request_id) if name.startswith("a-")]
    assert both.arrival_s[rows].tolist() == alone.arrival_s.tolist()
    assert both.prompt_tokens[rows].tolist() == alone.prompt_tokens.tolist()


def test_a_file_is_a_trace_wherever_one_is_asked_for(tmp_path: Path) -> None:
    """Drawn with the seed, and saying so; a bundled trace goes before a workload of its name."""
    path = tmp_path / "w.yaml"
    path.write_text("# mine\n---\nnum_requests: 30\n")
    found = read_trace(path, seed=4, limit=9)
    assert found.arrival_s.tolist() == generate(WorkloadSpec(num_requests=30), 4).arrival_s[:9].tolist()
    assert found.notes == (f"{path} is a workload: its requests are drawn with seed 4.",)
    assert (read_trace("chat").format, read_trace("chat.yaml").format) == ("native", "workload spec")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "a workload must be a mapping of keys to values, got"),
        ("num_request: 5", r"`num_request` is not a known key\. Did you mean num_requests"),
        ("num_requests: 5.5", r"`num_requests`: must be an integer, got 5\.5"),
        ("num_requests: 0", "`num_requests` must be from 1 to 1000000000, got 0"),
        ("num_requests: 5\nduration_s: 5", "both say how long a workload is"),
        ("duration_s: fast", "`duration_s`: must be a number, got fast"),
        ("prompt_tokens: 4.5", "`prompt_tokens`: must be 600, uniform.* got 4.5"),
        ("prompt_tokens: unifrom:1,5", "`prompt_tokens`: the lengths 'unifrom:1,5' have an unknown kind.*Did you mean uniform"),
        ("prompt_tokens: [5, x]", r"`prompt_tokens\.1`: must be an integer, got x"),
        ("prompt_tokens: []", "`prompt_tokens`: must have a length at least"),
        ("prompt_tokens: {5-3: 1}", "`prompt_tokens`: uniform lengths must have low <= high, got 5 and 3"),
        ("prompt_tokens: {5: 0}", "`prompt_tokens`: the weight of length 5 must be above 0"),
        ("prompt_tokens: file:none.txt", r"none\.txt: cannot be read"),
        ("output_tokens: pareto:200,0.5,2,1.5,4096", "a Pareto tail needs a share between 0 and 1"),
        ("turns: lognormal:4,1,9", "`turns`: must have a mean, as 4, geometric:4"),
        ("turns: 2\nturn_gap_s: soon", "`turn_gap_s`: the waits 'soon' cannot be read; write 5, exponential:5"),
        ("turns: 2\nturn_gap_s: expo:4", "unknown kind 'expo'.*exponential"),
        ("turns: 2\nthink_time_s: -1", "a wait must be from 0"),
        ("tool_tokens: 50", "`tool_tokens`: changes nothing without `calls`; leave it out"),
        ("num_prefixes: 5", "`num_prefixes`: changes nothing without `prefix_tokens`"),
        ("turns: 2\nmax_context_tokens: 100\nsummary_tokens: 100", "`max_context_tokens` must be more than"),
        ("arrivals: gama:1", "`arrivals`: arrivals must be gamma:burstiness.*Did you mean gamma"),
        ("request_rate: fast", "`request_rate`: must be a number of requests/s, inf, a list of"),
        ("request_rate: .nan", "`request_rate` must be above 0"),
        ("request_rate: []", "`request_rate`: must be a list with a mapping at least"),
        ("request_rate: [{rate: 5}]", r"`request_rate\.0`: `duration_s` is required but absent"),
        ("request_rate: [{rate: 5, duration_s: 0}]", r"`request_rate\.0`: `duration_s` must be above 0"),
        ("request_rate: [{rate: 0, duration_s: 5}]", "`request_rate`: the pieces of a rate must have one with requests"),
        ("request_rate: [{rate: 5, duration: 5}]", r"`request_rate\.0`: `duration` is not a known key\. Did you mean duration_s"),
        ("request_rate: {mean: 5, peak: 11}", "`request_rate`: a diurnal rate needs 0 < mean <= peak <= 2 x mean"),
        ("request_rate: {stages: [{rate: 0.1, duration_s: 5}]}", "`request_rate`: each stage must have a request"),
        ("request_rate: {stages: [{rate: 5, duration_s: 5}]}\nnum_requests: 5", "stages say themselves how long they are"),
        ("request_rate: inf\nspikes: [{at_s: 1, duration_s: 1, times: 2}]", "a rate of `inf` sends all at once"),
        ("spikes: [{at_s: 1, duration_s: 1, times: -2}]", r"`spikes\.0`: a spike needs"),
        ("lora_modules: sql", "`lora_modules`: must be a list of names, got sql"),
        ("slo: 5", "`slo`: must be a limit such as ttft_p99=500ms, or a list of them, got 5"),
        ("slo: [ttft_p99=1s, ttft_p99=2s]", "`slo`: --slo limits ttft_p99 twice"),
        ("clients: [{name: a, share: 1, slo: itl_p99=5ms}]", r"`clients\.0\.slo`: --slo itl_p99=5ms: goodput judges single requests"),
        ("dataset_name: randm", r"`dataset_name` must be random.* got 'randm'.*Did you mean random"),
        ("random_input_len: 5", "`random_input_len` is a parameter of a dataset; give its `dataset_name`"),
        ("dataset_name: sonnet\nrandom_input_len: 5", "`random_input_len` is not a parameter of the dataset sonnet"),
        ("dataset_name: random\nrandom_input_len: 5.5", "`random_input_len` must be an integer, got 5.5"),
        ("dataset_name: random\nrandom_range_ratio: 1", "`random_range_ratio` must be from 0 to below 1"),
        ("dataset_name: sonnet\nsonnet_input_len: 200", "`sonnet_input_len` must be more than"),
        ("burstiness: 1\narrivals: constant", "`burstiness` and `arrivals` say the same"),
        ("clients: []", "`clients`: must be a list of mappings"),
        ("clients: [{name: a}]", r"`clients\.0`: a class of clients must have a `share`"),
        ("clients: [{name: a, share: 0}]", r"`clients\.0\.share`: must be above 0"),
        ("clients: [{name: a, share: 1, num_requests: 5}]", r"`clients\.0`: `num_requests` of a class with a `share`"),
        ("clients: [{name: a, request_rate: 1}]", r"`clients\.0`: a class with a `request_rate` of its own must say how long"),
        ("clients: [{name: a, share: 1, prompt_tokens: 0}]", r"`clients\.0\.prompt_tokens`: a length must be from 1"),
        ("clients: [{share: 1}, {share: 2}]", "`clients`: each class of clients must have a name of its own"),
        ("clients: [{name: 'a b', share: 1}]", r"`clients\.0\.name`: must be a name of letters"),
        ("autotuning: {}", "`autotuning`: must have requests_per_second, batch_sizes"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_place(text: str, message: str, tmp_path: Path) -> None:
    """File, path of the field, rule and value."""
    with pytest.raises(TraceError, match=message) as caught:
        read(text, tmp_path)
    assert str(caught.value).startswith(("w.yaml: ", str(tmp_path)))


tokens = st.integers(1, 2**31 - 1)
small = st.floats(0.001, 1000)
weights = st.floats(1e-9, 1e9)
counts = st.one_of(
    st.builds(Fixed, tokens),
    st.builds(lambda low, more: Uniform(low, min(2**31 - 1, low + more)), tokens, st.integers(0, 10**6)),
    st.builds(Geometric, st.floats(1, 1e6)),
    st.builds(Choice, st.lists(st.tuples(tokens, weights), min_size=1, max_size=4).map(tuple)),
)
lengths = st.one_of(
    counts,
    st.builds(lambda median, sigma: Lognormal(median, sigma, 10**6), st.floats(1, 10**6), st.floats(0, 10)),
    st.builds(lambda median, share: ParetoTail(median, 0.5, share, 1.5, 10**6), st.floats(1, 10**6), st.floats(0.01, 0.9)),
    st.builds(
        lambda bins: Histogram(tuple((low, low + more, weight) for low, more, weight in bins)),
        st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 99), weights), min_size=1, max_size=4),
    ),
)  # fmt: skip
waits = st.one_of(
    st.builds(FixedWait, small), st.builds(Exponential, small), st.builds(lambda m: LognormalWait(m, 1.5, 1e6), small)
)
pieces = st.lists(st.builds(Piece, small, small, st.none() | small), min_size=1, max_size=3).map(tuple)
rates = st.one_of(
    small, st.builds(Pieces, pieces), st.builds(lambda mean, more: Diurnal(mean, mean * more), small, st.floats(1, 2))
)
arrivals = st.one_of(
    st.builds(Gamma, small), st.builds(Weibull, st.floats(0.05, 9)), st.just(Constant()), st.just(Poisson())
)


@st.composite
def specs(draw: st.DrawFn, name: str = "") -> WorkloadSpec:
    def some(field_type: type[Counts] | type[Lengths] | type[Waits]) -> st.SearchStrategy[object]:
        return {Counts: counts, Lengths: lengths, Waits: waits}[field_type]

    sessions = draw(st.booleans())
    in_sessions = {
        "turns": draw(counts.filter(lambda found: found.mean > 1)),
        "calls": draw(counts.filter(lambda found: found.mean > 1)),
        "tool_tokens": draw(some(Lengths)),
        "tool_wait_s": draw(some(Waits)),
        "turn_gap_s": draw(some(Waits)),
        "think_time_s": draw(st.none() | some(Waits)),
    }
    return WorkloadSpec(
        num_requests=draw(st.integers(1, 1000)),
        request_rate=draw(rates),
        arrivals=draw(arrivals),
        spikes=draw(st.lists(st.builds(Spike, small, small, small), max_size=2).map(tuple)),
        prompt_tokens=draw(lengths),
        output_tokens=draw(lengths),
        length_correlation=draw(st.floats(-1, 1)),
        exact=draw(st.booleans()),
        prefix_tokens=draw(st.integers(1, 1000)),
        num_prefixes=draw(st.integers(2, 9)),
        prefix_zipf=draw(st.floats(0, 3)),
        lora_modules=tuple(draw(st.lists(st.text("abc.1", min_size=1), max_size=3))),
        priority=draw(st.none() | st.integers(-9, 9)),
        slo=draw(st.sampled_from([(), ("ttft_p99=500ms",), ("ttft_p99=500ms", "e2el_p99.9=2.5s")])),
        name=name,
        **(in_sessions if sessions else {}),  # type: ignore[arg-type]
    )


@given(specs() | st.builds(lambda one, two: WorkloadMix((one, two)), specs("a"), specs("b")))
@examples(150)
def test_what_is_written_is_read_again(workload: Workload) -> None:
    """Load, dump, load."""
    assert read(to_yaml(workload)) == workload


def test_a_ramp_up_is_read_by_the_benchmarks_names_and_written() -> None:
    """Beside the other keys or under `request_rate`; not both, and not without an end."""
    ramp = RampUp("exponential", 1, 8)
    text = "ramp_up_strategy: exponential\nramp_up_start_rps: 1\nramp_up_end_rps: 8\n"
    assert read(text) == WorkloadSpec(request_rate=ramp)
    assert read(to_yaml(WorkloadSpec(30, ramp))) == WorkloadSpec(30, ramp)
    halves = read(f"{text}clients: [{{name: a, share: 1}}, {{name: b, share: 1}}]\n")
    assert isinstance(halves, WorkloadMix)
    assert {(one.count, one.request_rate) for one in halves.clients} == {(500, RampUp("exponential", 0.5, 4))}
    with pytest.raises(TraceError, match="`ramp_up_strategy` and `request_rate` say the same"):
        read(f"request_rate: 3\n{text}")
    with pytest.raises(TraceError, match="`ramp_up_end_rps` is required but absent"):
        read("ramp_up_strategy: linear\nramp_up_start_rps: 1\n")
