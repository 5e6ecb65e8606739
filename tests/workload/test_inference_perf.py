"""Loads of inference-perf, read as they are: stages at their rates, prompts that share system prompts, the same for a seed."""

from pathlib import Path

import numpy as np
import pytest

import sim
from sim.errors import TraceError
from sim.workload.load import trace_sha256
from sim.workload.writers import write_trace
from tests.shared import SHARED, needs_shared

LADDER = """\
# two stages and a pause
load:
  type: poisson
  interval: 5
  stages:
  - rate: 40
    duration: 30            # 1,200
  - rate: 0.5
    duration: 25
  request_timeout: 300.0
server:
  model_name: REPLACE_ME
data:
  type: shared_prefix
  shared_prefix:
    num_groups: 30
    num_prompts_per_group: 4
    system_prompt_len: 600
    question_len: 1300
    output_len: 100
"""


def load(folder: Path, text: str = LADDER, seed: int = 0) -> sim.Trace:
    path = folder / "load.in"
    path.write_text(text)
    return sim.read_trace(path, seed=seed)


def test_each_stage_sends_rate_times_duration_requests_in_about_its_time(tmp_path: Path) -> None:
    trace = load(tmp_path)
    assert trace.stage is not None
    assert np.bincount(trace.stage).tolist() == [1200, 12]
    first, second = (trace.arrival_s[trace.stage == stage] for stage in (0, 1))
    assert first[-1] == pytest.approx(30, abs=4 * np.sqrt(30 / 40))  # a Poisson count's deviation, at 40/s
    assert second[0] - first[-1] >= 6
    assert np.diff(first).std() / np.diff(first).mean() == pytest.approx(1, abs=0.15)


def test_even_stages_take_exactly_their_time(tmp_path: Path) -> None:
    trace = load(tmp_path, LADDER.replace("poisson", "constant"))
    assert trace.arrival_s[1199] == pytest.approx(30)
    assert trace.arrival_s[-1] == pytest.approx(30 + 5 + 1 + 25)


def test_prompts_share_what_their_group_says_and_come_again(tmp_path: Path) -> None:
    """120 prompts in 30 groups of four, shuffled once; every stage begins with the first of them."""
    trace = load(tmp_path)
    assert trace.segments is not None
    assert set(trace.prompt_tokens) == {1900}
    assert set(trace.output_tokens) == {100}
    assert all(sum(tokens for _, tokens in prompt) == 1900 for prompt in trace.segments)
    prompts = trace.segments[:120]
    assert len(set(prompts)) == 120
    groups, counts = np.unique([prompt[0][0] for prompt in prompts], return_counts=True)
    assert (len(groups), set(counts)) == (30, {4})
    assert trace.segments[120:240] == prompts
    assert trace.segments[1200:] == prompts[:12]
    assert [prompt[0][0] for prompt in prompts] != sorted(prompt[0][0] for prompt in prompts)


def test_lengths_are_clipped_and_rounded(tmp_path: Path) -> None:
    text = LADDER + "    question_len_std: 400\n    question_len_min: 1000\n    question_len_max: 1500\n"
    lengths = load(tmp_path, text).prompt_tokens - 600
    assert (lengths.min(), lengths.max()) == (1000, 1500)
    assert len(set(lengths)) > 30


def test_random_prompts_share_nothing_and_have_their_own_lengths(tmp_path: Path) -> None:
    head, _, _ = LADDER.partition("  type: shared_prefix")
    lengths = "{min: 90, max: 110, mean: 100, std_dev: 5}"
    trace = load(tmp_path, f"{head}  type: random\n  input_distribution: {lengths}\n  output_distribution: {lengths}\n")
    assert trace.segments is None
    assert len(trace) == 1212
    for tokens in (trace.prompt_tokens, trace.output_tokens):
        assert tokens.min() >= 90
        assert tokens.max() <= 110
        assert tokens.mean() == pytest.approx(100, abs=4 * 5 / np.sqrt(1212))
        assert tokens.std() == pytest.approx(5, rel=0.15)


def test_equal_seeds_are_equal_loads(tmp_path: Path) -> None:
    prints = [trace_sha256(load(tmp_path, seed=seed)) for seed in (3, 3, 4)]
    assert prints[0] == prints[1] != prints[2]


def test_it_can_be_written_as_a_trace(tmp_path: Path) -> None:
    """Questions are longer than system prompts here, so that they are cut in blocks of equal length."""
    trace = load(tmp_path)
    write_trace(trace, tmp_path / "rows.csv")
    assert trace_sha256(sim.read_trace(tmp_path / "rows.csv")) == trace_sha256(trace)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("poisson", "concurrent", "a load of type poisson or constant is read .*, got concurrent in `load.type`"),
        ("type: shared_prefix", "type: sharegpt", "got sharegpt in `data.type`; write such a load as rows"),
        ("data:", "dates:", "got nothing in `data.type`"),
        ("600", "600\n    enable_multi_turn_chat: true", "no `enable_multi_turn_chat`"),
        ("num_groups", "num_group", "`data.shared_prefix.num_groups` is required .*Did you mean num_groups"),
        ("rate: 40", "rate: -40", "`load.stages.0.rate` should be greater than 0, got -40"),
        ("duration: 25", "duration: 1", "each have a request at least.* got 0 in the smallest"),
        ("duration: 25", "duration: [", "is not valid YAML"),
    ],
)
def test_what_is_not_read_says_why(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    with pytest.raises(TraceError, match=sentence):
        load(tmp_path, LADDER.replace(old, new, 1))


READ = {
    "optimized-baseline": 17084,
    "precise-prefix-cache-routing": 17084,
    "tiered-prefix-cache": 10800,
    "pd-disaggregation": 5400,
}


@needs_shared
def test_public_guides_are_read_or_say_why() -> None:
    """Those of routing are Poisson ladders with shared prefixes; the others are closed loops, chats or random prompts."""
    for path in sorted((SHARED / "fleet/workloads").iterdir()):
        count = next((count for name, count in READ.items() if name in path.name), None)
        if count is None:
            with pytest.raises(TraceError, match="of inference-perf, a load of type poisson or constant is read"):
                sim.read_trace(path)
        else:
            assert len(sim.read_trace(path)) == count
