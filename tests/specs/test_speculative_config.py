"""What `--speculative-config` and its other spellings say, what is refused, and what a version of vLLM makes of it."""

from dataclasses import replace
from typing import Any

import pytest

from sim.errors import ConfigError
from sim.specs.engine import EngineConfig, ResolvedEngine
from sim.specs.hardware import load_gpu
from sim.specs.models import load_model
from sim.specs.releases import NEWEST
from sim.specs.serve_command import parse_engine_args, parse_serve_command, serve_command
from sim.specs.speculating import ways_of
from sim.specs.speculation import Speculation
from sim.specs.speculative_config import SpeculativeConfig
from sim.specs.vllm import resolve_engine

EAGLE3 = {"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3}


def resolved(
    config: dict[str, Any], version: str = "0.33.0", model: str = "Llama-3.1-8B", **more: Any
) -> ResolvedEngine:
    engine = EngineConfig(speculative_config=SpeculativeConfig.parse(config), **more)
    return resolve_engine(engine, load_model(model), load_gpu("h100-sxm"), vllm_version=version)


@pytest.mark.parametrize(
    "line",
    [
        """--speculative-config '{"method": "eagle3", "model": "M", "num_speculative_tokens": 3}'""",
        """-sc '{"method": "eagle3", "model": "M", "num_speculative_tokens": 3, "draft_sample_method": "greedy"}'""",
        "--speculative-config.method eagle3 --speculative-config.model M --speculative-config.num_speculative_tokens 3",
        "--spec-method eagle3 --spec-model M --spec-tokens 3",
        "--spec-method eagle3 --speculative-model M --num-speculative-tokens 3",
        """-sc '{"method": "eagle3", "model": "M", "num_speculative_tokens": 5}' --spec-tokens 3""",
    ],
)
def test_every_spelling_says_the_same(line: str) -> None:
    """And the line that is written for it is read as the same again."""
    config = SpeculativeConfig("eagle3", "M", 3)
    engine = parse_serve_command(f"vllm serve X {line}").engine
    assert engine == EngineConfig(speculative_config=config)
    assert parse_serve_command(serve_command("X", engine)).engine == engine
    assert EngineConfig(**engine.to_json()) == engine


def test_no_drafts_are_no_speculation() -> None:
    """As older versions had it."""
    assert parse_engine_args(["--speculative-model", "M", "--num-speculative-tokens", "0"]).engine == EngineConfig()


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"model": "ngram", "num_speculative_tokens": 3}, "ngram"),
        ({"model": "yuhuili/EAGLE-LLaMA3-Instruct-8B", "num_speculative_tokens": 3}, "eagle"),
        ({"model": "AngelSlim/Qwen3-8B_eagle3", "num_speculative_tokens": 3}, "eagle3"),
        ({"model": "z-lab/Qwen3-8B-DFlash-b16", "num_speculative_tokens": 15}, "dflash"),
        ({"model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 3}, "draft_model"),
        ({"method": "deepseek_mtp", "num_speculative_tokens": 1}, "mtp"),
    ],
)
def test_a_method_left_open_is_taken_from_the_models_name(config: dict[str, Any], method: str) -> None:
    """As vLLM takes it."""
    assert SpeculativeConfig.parse(config).chosen_method == method


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (3, "speculative_config must be an object such as"),
        ({}, "a `method` or a `model` is needed"),
        ({"method": "medusa", "model": "M"}, "method medusa is not simulated; use one of ngram, "),
        ({"method": "egle"}, "method must be one of ngram, .* got 'egle'"),
        ({"method": "eagle"}, "method eagle needs a `model`"),
        ({"method": "ngram", "num_tokens": 3}, "'num_tokens' is not a key of vLLM's speculative config"),
        (
            {"method": "ngram", "num_speculative_tokens": 0},
            "num_speculative_tokens must be an integer of at least 1, got 0",
        ),
        ({**EAGLE3, "max_model_len": 100}, "max_model_len 100 is not simulated; leave it out"),
        ({**EAGLE3, "disable_padded_drafter_batch": True}, "disable_padded_drafter_batch True is not simulated"),
        ({**EAGLE3, "tensor_parallel_size": 1}, "is called draft_tensor_parallel_size there"),
        ({**EAGLE3, "rejection_sample_method": "synthetic"}, "goes with either synthetic_acceptance_rates or"),
        ({**EAGLE3, "synthetic_acceptance_length": 2}, "neither of them without it"),
        (
            {**EAGLE3, "num_speculative_tokens_per_batch_size": [[2, 1, 3]]},
            r"a list of \[first size, last size, drafts\]",
        ),
        (
            {**EAGLE3, "rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.5, 0.6, 0.1]},
            r"must not increase, got \[0\.5, 0\.6, 0\.1\]",
        ),
    ],
)
def test_what_is_wrong_is_said(config: Any, message: str) -> None:
    """With the key, the rule and what was got."""
    with pytest.raises(ConfigError, match=message):
        SpeculativeConfig.parse(config)


@pytest.mark.parametrize(
    ("config", "arguments", "message"),
    [
        (EAGLE3, {"version": "0.8.4"}, "method eagle3 is unknown to vLLM 0.8.4, it exists since 0.8.5"),
        ({**EAGLE3, "parallel_drafting": True}, {"version": "0.14.0"}, "parallel_drafting is unknown to vLLM 0.14.0"),
        (
            {**EAGLE3, "disable_eagle_block_drop": True},
            {"version": "0.29.0"},
            "disable_eagle_block_drop is unknown to vLLM 0.29.0, it exists since 0.30.0",
        ),
        (
            {**EAGLE3, "disable_lookahead_block_hashes": True},
            {"version": "0.32.0"},
            "disable_lookahead_block_hashes is unknown to vLLM 0.32.0, it exists since 0.33.0",
        ),
        (
            {"method": "ngram", "num_speculative_tokens": 3},
            {"async_scheduling": True},
            "async_scheduling does not work",
        ),
        (
            EAGLE3,
            {"version": "0.11.0", "enable_lora": True},
            "vLLM 0.11.0 dies of drafts with enable_lora, .* since 0.11.1",
        ),
        (EAGLE3, {"version": "0.29.0", "pipeline_parallel_size": 2}, "vLLM 0.29.0 does not draft over pipeline stages"),
        (
            EAGLE3,
            {"model": "Qwen3-30B-A3B", "pipeline_parallel_size": 2},
            "does not relay the hidden states that eagle3 reads .* for Qwen3MoeForCausalLM",
        ),
        ({"method": "ngram"}, {}, "needs num_speculative_tokens"),
        ({"method": "mtp"}, {}, "Llama-3.1-8B has no layers for multi-token prediction"),
        ({**EAGLE3, "draft_tensor_parallel_size": 2}, {}, "draft_tensor_parallel_size 2 is not simulated"),
        (
            {**EAGLE3, "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 4.5},
            {},
            r"synthetic_acceptance_length must be in \[1, 4\], got 4\.5",
        ),
        (
            {**EAGLE3, "num_speculative_tokens_per_batch_size": [[1, 4, 3], [4, 9, 1]]},
            {},
            "must not overlap",
        ),
    ],
)
def test_what_a_version_or_a_model_does_not_take_is_refused(
    config: dict[str, Any], arguments: dict[str, Any], message: str
) -> None:
    """At start-up, as vLLM would."""
    with pytest.raises(ConfigError, match=message):
        resolved(config, **arguments)


@pytest.mark.parametrize(
    ("keys", "drops", "num_ahead"),
    [
        ({}, False, 1),
        ({"disable_lookahead_block_hashes": True}, True, 0),
        ({"disable_eagle_block_drop": True}, False, 0),
    ],
)
def test_what_keeps_drafters_from_stale_kv_can_be_chosen(keys: dict[str, Any], drops: bool, num_ahead: int) -> None:
    """vLLM 0.33: hashes that look ahead, the last block of a hit computed again, or neither."""
    speculation = resolved({**EAGLE3, **keys}).speculation
    assert speculation is not None
    assert (speculation.drops_last_hit, speculation.num_hash_lookahead_tokens) == (drops, num_ahead)


def test_layers_for_prediction_say_how_many_they_draft() -> None:
    """DeepSeek-V3 has one, which may be run several times."""
    assert resolved({"method": "mtp"}, model="DeepSeek-V3", tensor_parallel_size=8).speculation == Speculation(
        1, "mtp", **ways_of(NEWEST)
    )


def test_drafts_by_batch_size_are_a_table() -> None:
    """Sizes between and behind the ranges go on with those before; none before the first range."""
    config = {**EAGLE3, "num_speculative_tokens_per_batch_size": [[5, 5, 1], [1, 2, 4]]}
    speculation = resolved(config).speculation
    assert speculation is not None
    assert speculation.by_batch_size == (0, 3, 3, 3, 3, 1)


def test_async_scheduling_goes_with_drafters_from_some_version_on() -> None:
    """Never with ngram on the CPU, and by default where the version has it by default."""
    assert [resolved(EAGLE3, version).async_scheduling for version in ("0.13.0", "0.14.0")] == [False, True]
    assert resolved(EAGLE3, "0.12.0", async_scheduling=True).async_scheduling
    assert not resolved({"method": "ngram", "num_speculative_tokens": 3}).async_scheduling


def test_graphs_are_captured_for_whole_requests() -> None:
    """Up to 16 requests of four tokens: sizes are multiples of four, and as full graphs none goes beyond those requests."""
    engine = resolved(EAGLE3, "0.20.0", max_num_seqs=16)
    assert engine.uniform_query_len == 4
    assert engine.cudagraph_capture_sizes == (4, *range(8, 129, 8))
    older = replace(resolved(EAGLE3, "0.11.0", max_num_seqs=16))
    assert older.cudagraph_capture_sizes == (1, 2, 4, *range(8, 33, 8))
