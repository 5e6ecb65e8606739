"""Loads of inference-perf, read as they are: stages at their rates, prompts that share system prompts, the same for a seed."""

from itertools import pairwise
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
        (
            "poisson",
            "trace_replay",
            "a load of type poisson, constant or concurrent is read .*, got trace_replay in `load.type`",
        ),
        (
            "poisson",
            "concurrent",
            "`load.stages.0.num_requests`, .*`load.stages.1.concurrency_level` are required but absent",
        ),
        ("type: shared_prefix", "type: sharegpt", "got sharegpt in `data.type`; write such a load as rows"),
        ("data:", "dates:", "got nothing in `data.type`"),
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
    "p2p-kv-cache-sharing": 1152,
    "wide-ep-lws": 8192,
}


CHATS = """\
load:
  type: concurrent
  num_workers: 3
  stages:
  - {num_requests: 300, concurrency_level: 8}
  - {num_requests: 30, concurrency_level: 2}
data:
  type: conversation_replay
  conversation_replay:
    num_conversations: 10
    shared_system_prompt_len: 100
    dynamic_system_prompt_len: {type: uniform, min: 200, max: 400}
    turns_per_conversation: {type: normal, min: 2, max: 6, mean: 4, std_dev: 1}
    input_tokens_per_turn: {type: lognormal, min: 5, max: 900, mean: 90, std_dev: 60}
    output_tokens_per_turn: {type: fixed, mean: 70}
    tool_call_latency_sec: {type: poisson, min: 0, max: 9, mean: 2}
"""


def test_a_concurrent_stage_has_so_many_requests_within_a_second(tmp_path: Path) -> None:
    """Prompts of nobody in particular go to whoever has a place."""
    stages = "  type: concurrent\n  stages: [{num_requests: 40, concurrency_level: 7}, {num_requests: 9, concurrency_level: 3}]"
    trace = load(tmp_path, f"load:\n{stages}\n{LADDER[LADDER.index('data:') :]}")
    assert trace.stage is not None
    assert trace.max_concurrency is not None
    assert (trace.line, trace.session_id, trace.hold_s) == (None, None, None)
    assert list(zip(trace.stage.tolist(), trace.max_concurrency.tolist(), strict=True)) == [(0, 7)] * 40 + [(1, 3)] * 9
    assert trace.arrival_s[[39, 48]].tolist() == pytest.approx([1, 1 + 1 + 1 + 1])


def test_workers_have_equal_parts_of_the_places_and_conversations_of_their_own(tmp_path: Path) -> None:
    """Eight places are 3, 3 and 2; of two places the third worker has none, and nobody is its."""
    trace = load(tmp_path, CHATS)
    assert trace.line is not None
    assert trace.max_concurrency is not None
    assert trace.line[:12].tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 0, 1]
    assert trace.line[300:304].tolist() == [0, 1, 0, 1]
    assert trace.max_concurrency[[0, 1, 2, 300, 301]].tolist() == [3, 3, 2, 1, 1]
    text = CHATS.replace("  num_workers: 3\n", "")
    alone = load(tmp_path, text)
    assert alone.line is not None
    assert set(alone.line) == {0}
    assert "does not say `num_workers`" in alone.notes[1]


def test_a_slot_goes_on_with_its_conversation_and_begins_it_again(tmp_path: Path) -> None:
    """Each prompt begins with the one before it; again it has the same lengths, and contents in common until the first answer."""
    trace = load(tmp_path, CHATS)
    assert trace.session_id is not None
    assert trace.segments is not None
    rows = {
        name: [row for row, other in enumerate(trace.session_id) if other == name] for name in set(trace.session_id)
    }
    for turns in rows.values():
        prompts = [trace.segments[row] for row in turns]
        for row, (before, after) in enumerate(pairwise(prompts)):
            assert after[: len(before) - 1] == before[:-1]
            assert after[len(before) - 1][0] == before[-1][0]
            grown = int(trace.prompt_tokens[turns[row + 1]] - trace.prompt_tokens[turns[row]])
            assert 70 + 5 <= grown <= 70 + 900
    first, again, other, later = (rows[name] for name in ("0-4-0", "0-4-1", "0-5-0", "1-4-0"))
    assert 2 <= len(first) <= 6
    assert first[:2] == [4, 14]
    assert again[0] == first[-1] + 10
    assert trace.prompt_tokens[first].tolist() == trace.prompt_tokens[again].tolist()
    assert trace.hold_s is not None
    assert trace.hold_s[first].tolist() == trace.hold_s[again].tolist()

    def common(left: int, right: int) -> int:
        assert trace.segments is not None
        pairs = zip(trace.segments[left], trace.segments[right], strict=False)
        return sum(tokens for (mine, tokens), (theirs, _) in pairs if mine == theirs)

    opening = int(trace.prompt_tokens[first[0]])
    assert common(first[0], again[0]) == common(first[1], again[1]) == opening // 16 * 16
    assert common(first[0], other[0]) == 100 // 16 * 16
    assert common(first[0], later[0]) == 0
    assert trace.prompt_tokens[first[0]] == trace.prompt_tokens[later[0]]


def test_answers_that_leave_no_room_for_prompts_are_refused(tmp_path: Path) -> None:
    """As inference-perf does."""
    text = CHATS.replace("conversation_replay:\n", "conversation_replay:\n    max_model_len: 270\n")
    with pytest.raises(TraceError, match=r"leave room for a prompt in `max_model_len` 270, .* they have up to 70"):
        load(tmp_path, text)


def test_a_fixed_length_is_what_it_says_whatever_its_bounds(tmp_path: Path) -> None:
    """Bounds are 10 and 1,024 where the file has none, and tools may take no time at all."""
    text = CHATS.replace("{type: poisson, min: 0, max: 9, mean: 2}", "{type: fixed, mean: 0}")
    trace = load(tmp_path, text.replace("{type: fixed, mean: 70}", "{type: fixed, mean: 3000}"))
    assert trace.hold_s is not None
    assert (set(trace.hold_s), set(trace.output_tokens)) == ({0.0}, {3000})


def test_chats_ask_their_question_again(tmp_path: Path) -> None:
    text = LADDER.replace("question_len: 1300", "question_len: 30\n    enable_multi_turn_chat: true")
    trace = load(tmp_path, text)
    assert trace.session_id is not None
    assert trace.line is None
    assert [trace.session_id.index(trace.session_id[row]) for row in (0, 120, 240)] == [0, 0, 0]
    assert trace.prompt_tokens[[0, 120, 240, 1200]].tolist() == [630, 630 + 130, 630 + 260, 630]


def test_the_oldest_turns_go_where_a_context_is_full(tmp_path: Path) -> None:
    """Room for 1,000 - 70 - 200 tokens: 100 + 300 of system prompt, 100 a question; the third turn has room for one turn before it."""
    text = CHATS.replace("conversation_replay:\n", "conversation_replay:\n    max_model_len: 1000\n")
    text = text.replace("type: uniform, min: 200, max: 400", "type: fixed, min: 300, max: 300, mean: 300")
    text = text.replace("type: lognormal, min: 5, max: 900, mean: 90", "type: fixed, min: 100, max: 100, mean: 100")
    trace = load(tmp_path, text)
    assert trace.prompt_tokens[[0, 10, 20]].tolist() == [500, 670, 670]
    assert trace.segments is not None
    assert trace.segments[20][:25] == trace.segments[10][:25]
    assert trace.segments[20][25] != trace.segments[10][25]
    crowded = load(tmp_path, text.replace("max_model_len: 1000", "max_model_len: 600"))
    assert crowded.prompt_tokens[[0, 10]].tolist() == [330, 330]


@pytest.mark.parametrize(
    ("kind", "mean", "deviation"),
    [
        ("normal", 500, 50),
        ("lognormal", 500, 50),
        ("uniform", 500, 400 / np.sqrt(12)),
        ("poisson", 500, np.sqrt(500)),
        ("fixed", 500, 0),
        ("skew_normal, skew: 2", 500 + 50 * 2 / np.sqrt(5) * np.sqrt(2 / np.pi), 50 * np.sqrt(1 - 8 / (5 * np.pi))),
    ],
)
def test_lengths_have_their_distribution(tmp_path: Path, kind: str, mean: float, deviation: float) -> None:
    """Within four standard errors at 1,212 requests."""
    lengths = f"{{type: {kind}, min: 300, max: 700, mean: 500, std_dev: 50}}"
    data = f"  type: random\n  input_distribution: {lengths}\n  output_distribution: {lengths}\n"
    tokens = load(tmp_path, f"{LADDER.partition('  type: shared_prefix')[0]}{data}").output_tokens
    assert tokens.mean() == pytest.approx(mean, abs=4 * deviation / np.sqrt(1212) + 0.1)
    assert tokens.std() == pytest.approx(deviation, rel=4 / np.sqrt(2 * 1212) + 0.05, abs=0.3)


@pytest.mark.parametrize(
    ("lengths", "sentence"),
    [
        (
            "{min: 9, max: 8}",
            "`data.conversation_replay.turns_per_conversation` must have its `min` at most its `max`, 8",
        ),
        ("{std_dev: 3, variance: 9}", "must have either `std_dev` or `variance`"),
        ("{type: lognormal, mean: 0}", "must have a `mean` above 0"),
        (
            "{mean: 1e12}",
            "`data.conversation_replay.turns_per_conversation.mean` should be less than or equal to 2147483647",
        ),
        ("{type: normall}", "`data.conversation_replay.turns_per_conversation.type` should be 'normal'"),
    ],
)
def test_lengths_that_cannot_be_drawn(tmp_path: Path, lengths: str, sentence: str) -> None:
    text = CHATS.replace("{type: normal, min: 2, max: 6, mean: 4, std_dev: 1}", lengths)
    with pytest.raises(TraceError, match=sentence):
        load(tmp_path, text)


def test_a_stage_of_conversations_keeps_as_many_in_flight(tmp_path: Path) -> None:
    """Places, turns and tools: never more than the level, and each worker sends in its order."""
    trace = load(tmp_path, CHATS)
    assert trace.hold_s is not None
    found = sim.simulate("Llama-3.1-8B", "h100-sxm", trace, intervals=False)
    assert [stage["max_concurrency"] for stage in found.summary["stages"]] == [8, 2]
    sent = found.requests
    held = sent["finish_s"] + trace.hold_s
    for stage, level in ((slice(0, 300), 8), (slice(300, 330), 2)):
        begins, ends = sent["arrival_s"][stage].to_numpy(), held[stage].to_numpy()
        most = max(int(((begins <= now) & (ends > now + 1e-9)).sum()) for now in begins)
        assert most <= level
        assert most >= level - 1


@needs_shared
def test_public_guides_are_read_or_say_why() -> None:
    """One has its `data` under `tokenizer`, and one replays sessions of a dataset."""
    for path in sorted((SHARED / "fleet/workloads").iterdir()):
        count = next((count for name, count in READ.items() if name in path.name), None)
        if count is None:
            with pytest.raises(
                TraceError, match=r"of inference-perf, .* got (nothing in `data|trace_session_replay in `load)\.type`"
            ):
                sim.read_trace(path)
        else:
            assert len(sim.read_trace(path)) == count
