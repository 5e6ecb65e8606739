"""How a version of vLLM starts up with a speculative config: what it knows, what it works out, what it refuses."""

from collections.abc import Mapping
from itertools import pairwise
from typing import TypedDict

from sim.errors import ConfigError
from sim.specs.engine import EngineConfig
from sim.specs.model import ModelSpec
from sim.specs.releases import parse_version
from sim.specs.speculation import EAGLES, Speculation
from sim.specs.speculative_config import SpeculativeConfig

METHODS_SINCE: Mapping[str, str] = {
    "ngram": "0.8.0",
    "eagle": "0.8.5",  # vllm-project/vllm #16035
    "eagle3": "0.8.5",  # #16937
    "mtp": "0.9.1",  # #18435, as deepseek_mtp
    "draft_model": "0.15.0",  # #24322, in the V1 engine
    "ngram_gpu": "0.18.0",  # #29184
    "dflash": "0.19.0",
}
"""First releases with each method in the V1 engine, by the pull requests that brought them."""
PARALLEL_SINCE = "0.16.0"  # #32887
SYNTHETIC_SINCE = "0.25.1"  # the first release seen with these keys; 0.19.1 had another one
ASYNC_SINCE: Mapping[str, str] = {
    **dict.fromkeys(EAGLES, "0.12.0"),  # #24799
    "draft_model": "0.16.0",
    "ngram_gpu": "0.18.0",
}
"""Since when a method goes with async scheduling; ngram on the CPU never does."""
LORA_SINCE = "0.11.1"
"""Since when verification runs under adapters, #21068; before, they were applied as if each request sampled one token."""
STAGES_SINCE = "0.30.0"
"""Since when drafters know of pipeline stages, #50514."""
RELAYING = (
    "LlamaForCausalLM",
    "Llama4ForConditionalGeneration",
    "MistralForCausalLM",
    "Mistral3ForConditionalGeneration",
    "Phi3ForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)
"""Architectures that relay hidden states over stages (`supports_aux_hidden_states_over_pp` of vLLM 0.32)."""
DROP_CHOICE_SINCE = "0.30.0"
"""Since when drafters can be told to trust the last block of a prefix hit."""
LOOKAHEAD_HASHES_SINCE = "0.33.0"
"""Since when hashes of blocks cover what drafters read behind them; DFlash counts no more among these since then."""


def resolve_speculation(engine: EngineConfig, model: ModelSpec, vllm_version: str) -> Speculation | None:
    """What the scheduler is asked for. Raises ConfigError for what that version refuses of that model."""
    config, tensor_parallel_size = engine.speculative_config, engine.tensor_parallel_size
    if config is None:
        return None
    method = config.chosen_method
    _check_version(config, method, vllm_version)
    if engine.pipeline_parallel_size > 1:
        _check_stages(method, model, vllm_version)
    if engine.enable_lora and parse_version(vllm_version) < parse_version(LORA_SINCE):
        raise ConfigError(
            f"speculative_config: vLLM {vllm_version} dies of drafts with enable_lora, which go together since {LORA_SINCE}: leave one of them"
            " out or choose a newer vllm_version."
        )
    if config.draft_tensor_parallel_size not in {None, tensor_parallel_size}:
        raise ConfigError(
            f"draft_tensor_parallel_size {config.draft_tensor_parallel_size} is not simulated; leave it out, or give"
            f" that of the model, {tensor_parallel_size}."
        )
    num_drafts = _num_drafts(config, method, model)
    _check_synthetic(config, num_drafts)
    return Speculation(
        num_drafts,
        method,
        parallel_drafting=_drafts_in_parallel(config, method),
        mtp_layers=max(1, model.num_prediction_layers) if method == "mtp" else 1,
        by_batch_size=_by_batch_size(config.num_speculative_tokens_per_batch_size or (), num_drafts),
        **ways_of(
            vllm_version,
            trusts_last_block=config.disable_eagle_block_drop,
            hashes_look_ahead=not config.disable_lookahead_block_hashes,
        ),
    )


class Ways(TypedDict):
    """Fields of a Speculation that the version of vLLM has a say in."""

    trusts_last_block: bool
    hashes_look_ahead: bool
    dflash_reads_ahead: bool


def ways_of(vllm_version: str, *, trusts_last_block: bool = False, hashes_look_ahead: bool = True) -> Ways:
    """How that version keeps drafters from KV that does not fit the tokens that follow, as far as it is asked for."""
    is_new = parse_version(vllm_version) >= parse_version(LOOKAHEAD_HASHES_SINCE)
    return Ways(
        trusts_last_block=trusts_last_block,
        hashes_look_ahead=is_new and hashes_look_ahead,
        dflash_reads_ahead=not is_new,
    )


def goes_with_async(speculation: Speculation | None, vllm_version: str) -> bool:
    """Whether that version can schedule a step ahead while it speculates so."""
    if speculation is None:
        return True
    since = ASYNC_SINCE.get(speculation.method)
    return since is not None and parse_version(vllm_version) >= parse_version(since)


def _check_version(config: SpeculativeConfig, method: str, vllm_version: str) -> None:
    asked = [(f"method {method}", METHODS_SINCE[method])]
    asked += [("parallel_drafting", PARALLEL_SINCE)] if config.parallel_drafting else []
    asked += [("synthetic acceptance", SYNTHETIC_SINCE)] if config.is_synthetic else []
    asked += [("disable_eagle_block_drop", DROP_CHOICE_SINCE)] if config.disable_eagle_block_drop else []
    asked += (
        [("disable_lookahead_block_hashes", LOOKAHEAD_HASHES_SINCE)] if config.disable_lookahead_block_hashes else []
    )
    for what, since in asked:
        if parse_version(vllm_version) < parse_version(since):
            raise ConfigError(
                f"speculative_config: {what} is unknown to vLLM {vllm_version}, it exists since {since}: leave it out or"
                " choose a newer vllm_version."
            )


def _check_stages(method: str, model: ModelSpec, vllm_version: str) -> None:
    if parse_version(vllm_version) < parse_version(STAGES_SINCE):
        raise ConfigError(
            f"speculative_config: vLLM {vllm_version} does not draft over pipeline stages, which it does since {STAGES_SINCE}: leave"
            " pipeline_parallel_size out or choose a newer vllm_version."
        )
    if method in {"eagle3", "dflash"} and model.architecture not in RELAYING:
        raise ConfigError(
            f"speculative_config: vLLM does not relay the hidden states that {method} reads over pipeline stages for {model.architecture}:"
            " leave pipeline_parallel_size out, or use method eagle, mtp or draft_model."
        )


def _num_drafts(config: SpeculativeConfig, method: str, model: ModelSpec) -> int:
    """As asked for; layers for prediction draft a token each, or whole rounds of them."""
    asked = config.num_speculative_tokens
    if method != "mtp" or config.model is not None:
        if asked is None:
            raise ConfigError("speculative_config needs num_speculative_tokens with this method; give it.")
        return asked
    layers = model.num_prediction_layers
    if not layers:
        raise ConfigError(
            f"speculative_config: {model.name} has no layers for multi-token prediction; use another method."
        )
    if asked is not None and asked > layers and asked % layers:
        raise ConfigError(
            f"speculative_config: num_speculative_tokens must be a multiple of the {layers} prediction layers of"
            f" {model.name}, got {asked}."
        )
    return asked or layers


def _drafts_in_parallel(config: SpeculativeConfig, method: str) -> bool:
    if config.parallel_drafting and method not in {"eagle", "eagle3", "draft_model", "dflash"}:
        raise ConfigError(
            f"speculative_config: parallel_drafting goes with eagle and draft models, got method {method}."
        )
    return config.parallel_drafting or method == "dflash"


def _check_synthetic(config: SpeculativeConfig, num_drafts: int) -> None:
    rates, length = config.synthetic_acceptance_rates, config.synthetic_acceptance_length
    if rates is not None and len(rates) != num_drafts:
        raise ConfigError(
            f"speculative_config: synthetic_acceptance_rates must have num_speculative_tokens ({num_drafts}) entries, got"
            f" {len(rates)}."
        )
    if length is not None and not 1 <= length <= num_drafts + 1:
        raise ConfigError(
            f"speculative_config: synthetic_acceptance_length must be in [1, {num_drafts + 1}], got {length:g}."
        )


def _by_batch_size(ranges: tuple[tuple[int, int, int], ...], num_drafts: int) -> tuple[int, ...]:
    """Drafts by batch size; sizes between and behind the ranges go on with those before them, at most `num_drafts`."""
    if not ranges:
        return ()
    ordered = sorted(ranges)
    if any(one[1] >= other[0] for one, other in pairwise(ordered)):
        raise ConfigError(
            "speculative_config: the ranges of num_speculative_tokens_per_batch_size must not overlap, got"
            f" {[list(entry) for entry in ranges]}."
        )
    table = [0]
    for first, last, count in ordered:
        table += [table[-1]] * (first - len(table))
        table += [min(count, num_drafts)] * (last - first + 1)
    return tuple(table)
