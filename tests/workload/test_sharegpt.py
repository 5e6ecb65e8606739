"""Conversations become requests as `vllm bench serve --dataset-name sharegpt` samples them."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.errors import ConfigError, TraceError
from sim.workload.readers import read_trace
from tests.cli.test_trace import run
from tests.workload.makers import piped

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog"]


def talk(name: str, *lengths: int) -> dict[str, Any]:
    """A conversation of turns of so many words, and as many tokens."""
    turns = [
        {
            "from": "human" if turn % 2 == 0 else "gpt",
            "value": " ".join([name, *WORDS * 200][:length]),
            "num_tokens": length,
        }
        for turn, length in enumerate(lengths)
    ]
    return {"id": name, "conversations": turns}


TALKS = [
    *(talk(f"t{number}", 10 + number, 20 + number, 5) for number in range(30)),
    talk("short", 3, 50), talk("mute", 50, 3), talk("long", 1025, 4), talk("both", 1024, 1025), talk("edge", 1024, 1024),
    talk("alone", 50), {"id": "nothing", "other": 1},
]  # fmt: skip


def as_vllm_bench_serve(talks: list[dict[str, Any]], seed: int) -> list[tuple[int, int]]:
    """Prompt and output lengths, restated from ShareGPTDataset.load_data, sample and is_valid_sequence."""
    data = [entry for entry in talks if "conversations" in entry and len(entry["conversations"]) >= 2]
    random.seed(seed)
    random.shuffle(data)
    found = []
    for entry in data:
        prompt, output = (len(turn["value"].split()) for turn in entry["conversations"][:2])
        if not (prompt < 4 or output < 4 or prompt > 1024 or prompt + output > 2048):
            found.append((prompt, output))
    return found


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One token a word, in a folder as models have it."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    names = [*WORDS, *(f"t{number}" for number in range(30)), "short", "mute", "long", "both", "edge", "alone", "?"]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(names)}, unk_token="?"))  # noqa: S106
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder = tmp_path_factory.mktemp("model")
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder


@pytest.mark.parametrize("seed", [0, 7])
def test_conversations_are_sampled_as_the_benchmark_samples_them(tmp_path: Path, seed: int) -> None:
    """The same pairs in the same order, from counts; what is pruned and what is no conversation is counted."""
    (tmp_path / "t").write_bytes(gzip.compress(json.dumps(TALKS).encode()))
    trace = read_trace(tmp_path / "t", seed=seed)
    pairs = list(zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True))
    assert pairs == as_vllm_bench_serve(TALKS, seed)
    assert len(pairs) == 31
    assert [note.partition(": ")[2] for note in trace.notes[:2]] == [
        "2 of its items, of less than two turns, are left out.",
        "4 of its items, too short or too long for vllm bench serve, are left out.",
    ]
    assert seed or piped(tmp_path / "t").prompt_tokens.tolist() == trace.prompt_tokens.tolist()
    first = read_trace(tmp_path / "t", seed=seed, limit=5)
    assert list(zip(first.prompt_tokens.tolist(), first.output_tokens.tolist(), strict=True)) == pairs[:5]


def test_arrivals_are_drawn_and_follow_a_rate(tmp_path: Path) -> None:
    """Poisson at one a second, the last at N seconds; another rate stretches them, and inf sends all at once."""
    (tmp_path / "t").write_text("".join(json.dumps(item) + "\n" for item in TALKS[:30]))
    trace = read_trace(tmp_path / "t")
    assert trace.arrival_s[-1] == pytest.approx(30.0)
    gaps = np.diff(trace.arrival_s)
    assert 0.5 < gaps.std() / gaps.mean() < 1.5
    assert read_trace(tmp_path / "t", request_rate=10.0).arrival_s[-1] == pytest.approx(3.0)
    assert read_trace(tmp_path / "t", request_rate=float("inf")).arrival_s.tolist() == [0.0] * 30


def test_a_local_tokenizer_counts_and_says_what_prompts_share(tmp_path: Path, tokenizer: Path) -> None:
    """The same lengths as counts give; equal beginnings are equal blocks."""
    bare = [{"conversations": [{"value": turn["value"]} for turn in item["conversations"]]} for item in TALKS[:35]]
    same = {"conversations": [{"value": " ".join(WORDS * 2 + [end])} for end in ("t1", "t2")]}
    (tmp_path / "t").write_text(json.dumps([*bare, same, same]))
    trace = read_trace(tmp_path / "t", tokenizer=tokenizer)
    pairs = list(zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True))
    assert pairs == as_vllm_bench_serve([*bare, same, same], 0)
    assert trace.segments is not None
    twice = [
        path
        for path, length in zip(trace.segments, trace.prompt_tokens, strict=True)
        if length == 19 and path[0][1] == 16
    ]
    assert any(twice.count(path) == 2 for path in twice)
    result = run("convert", tmp_path / "t", tmp_path / "n.csv", "--tokenizer", tokenizer, "--json")
    assert json.loads(result.stdout)["num_requests"] == len(pairs)
    assert read_trace(tmp_path / "n.csv").prompt_tokens.tolist() == trace.prompt_tokens.tolist()


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([{"conversations": [{"value": "a"}, {"value": "b"}]}], "t, item 1: a turn has no `num_tokens`; .*--tokenizer FOLDER"),
        ([{"conversations": [{"num_tokens": 5}, {"tokens": -1}]}], "t, item 1: `tokens` must be an integer from 0 .*got -1"),
        ([{"conversations": ["a", "b"]}], "t, item 1: `conversations` must be a list of objects"),
        ([{"conversations": []}], "t: a trace needs at least one request, got none: 1 of its items, of less than two turns"),
        ([talk("x", 3, 3)], "got none: 1 of its items, too short or too long for vllm bench serve, do not count"),
    ],
)  # fmt: skip
def test_what_is_no_conversation_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, items: list[object], message: str
) -> None:
    """The item, the key, and where a tokenizer would do."""
    monkeypatch.chdir(tmp_path)
    Path("t").write_text(json.dumps(items))
    with pytest.raises(TraceError, match=message):
        read_trace("t")


def test_a_tokenizer_is_a_folder_and_for_conversations(tmp_path: Path, tokenizer: Path) -> None:
    """A hub's name is none, nor is a folder without one; elsewhere it would do nothing."""
    (tmp_path / "t").write_text(json.dumps(TALKS))
    with pytest.raises(
        ConfigError, match="`tokenizer` must be a folder with a model's tokenizer, got gpt2; download it"
    ):
        read_trace(tmp_path / "t", tokenizer="gpt2")
    with pytest.raises(ConfigError, match="`tokenizer` must be a folder that transformers can load, got "):
        read_trace(tmp_path / "t", tokenizer=tmp_path)
    with pytest.raises(ConfigError, match=r"`tokenizer` is for files of conversations, got .*chat"):
        read_trace("chat", tokenizer=tokenizer)
    (tmp_path / "t").write_text(json.dumps([{"conversations": [{"value": 3}, {"value": "b"}]}]))
    with pytest.raises(TraceError, match="item 1: `value` of a turn must be its text, got 3"):
        read_trace(tmp_path / "t", tokenizer=tokenizer)
