"""Engine arguments by use case."""

from pathlib import Path

import pytest

import sim
from sim.errors import ConfigError
from sim.specs.presets import PRESETS, preset
from sim.specs.serve_command import parse_engine_args, parse_serve_command


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


def test_the_interactive_one_is_what_the_specification_finds() -> None:
    """By its own formulas, for its own workload of that name; the longest sequence of that is no advice for others."""
    workload = sim.WorkloadProfile.create_synthetic("interactive")
    found = sim.vLLMConfigOptimizer("Llama-3.1-8B", sim.ClusterSpec("h100-sxm", num_devices=1)).search_optimal_config(
        workload
    )
    config, predictions = found["optimal_config"], found["predictions"]
    assert preset("interactive") == sim.EngineConfig(
        max_num_seqs=predictions["recommended_max_num_seqs"],
        gpu_memory_utilization=config.gpu_memory_utilization,
        cudagraph_capture_sizes=config.cudagraph_capture_sizes,
    )
