"""Engine arguments by use case."""

from pathlib import Path

import pytest

import sim
from benchmarks.presets import DEPLOYED, PROMISES, Promise
from sim.deployment import deploy
from sim.errors import ConfigError
from sim.report.search import optimization_text
from sim.specs.presets import PRESETS, preset
from sim.specs.serve_command import parse_engine_args, parse_serve_command
from tests.docs.seeds import PRESET_ROWS, said


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_the_same_on_the_command_line_and_in_python(name: str) -> None:
    assert parse_engine_args(["--preset", name]).engine == preset(name) == sim.EngineConfig(**PRESETS[name])


def test_what_is_given_as_well_wins(tmp_path: Path) -> None:
    """On the command line, before or behind it, in a file, and in a line that is pasted."""
    words = ["--max-num-batched-tokens", "4096", "--preset", "chat"]
    expected = preset("chat", max_num_batched_tokens=4096)
    assert expected == sim.EngineConfig(max_num_batched_tokens=4096, long_prefill_token_threshold=256)
    assert parse_engine_args(words).engine == expected
    assert parse_serve_command(["vllm", "serve", "m", *words[:2], *words[2:]]).engine == expected
    file = tmp_path / "config.yaml"
    file.write_text("max-num-batched-tokens: 4096")
    assert parse_engine_args(["--config", str(file), "--preset", "batch", "--preset", "chat"]).engine == expected


def test_an_unknown_preset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--preset must be one of chat, .*, got 'chatt'\. Did you mean chat\?"):
        parse_engine_args(["--preset", "chatt"])
    with pytest.raises(ConfigError, match="preset must be one of chat"):
        preset("chatt")
    file = tmp_path / "config.yaml"
    file.write_text("preset: chat")
    with pytest.raises(ConfigError, match="must be given on the command line"):
        parse_engine_args(["--config", str(file)])


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.preset)
def test_what_a_preset_promises_it_keeps(promise: Promise) -> None:
    """By model and GPU, and at the cost that the page says: all that stands there is what is simulated."""
    changes = [deployed.change(promise) for deployed in DEPLOYED]
    kept = sorted(round(100 * abs(change[promise.figure])) for change in changes)
    times = sorted(round(1 + change[promise.cost], 2) for change in changes)
    is_what = {
        "chat": (256, 2048, kept[0], kept[-1], round(times[0], 1), round(times[-1], 1)),
        "batch": (8192, 512, 95, kept[0], kept[-1], round(times[-1], 1)),
        "interactive": (kept[0], kept[-1], round(100 * (times[-1] - 1))),
    }
    assert said("seeds.md", PRESET_ROWS[promise.preset]) == is_what[promise.preset]
    assert all((round(100 * change[promise.figure]) >= 0) == (promise.preset == "batch") for change in changes)


def test_presets_are_what_their_page_says() -> None:
    """The first column of its table."""
    assert PRESETS["chat"] == {"long_prefill_token_threshold": 256, "max_num_batched_tokens": 2048}
    assert PRESETS["batch"] == {"max_num_batched_tokens": 8192, "max_num_seqs": 512, "gpu_memory_utilization": 0.95}
    assert PRESETS["interactive"] == {"async_scheduling": False}


def test_the_production_one_is_the_documents() -> None:
    """Of the arguments that vLLM's own choice of today leaves as they are, all but the share of the memory change nothing."""
    asked = preset("production")
    plain, preferred = (
        deploy("Llama-2-70b-hf", "a100-sxm-80gb", engine).engine
        for engine in (sim.EngineConfig(tensor_parallel_size=4), asked)
    )
    changed = {name for name, value in asked.given.items() if getattr(plain, name) != value}
    assert changed == {"gpu_memory_utilization", "max_num_batched_tokens"}
    assert preferred.gpu_memory_utilization == 0.95


def test_searches_begin_from_a_preset() -> None:
    """What it gives is no knob, and stays as it is in whatever is found."""
    found = sim.optimize("Llama-3.1-8B", "h100-sxm", "chat", limit=20, trials=2, engine=preset("chat"), intervals=False)
    assert PRESETS["chat"].items() <= found.summary["best"]["engine"].items()
    assert "max_num_batched_tokens stays as it is: given, not searched" in optimization_text(found.summary)
