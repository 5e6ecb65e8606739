"""The datasets of `vllm bench serve` by its own names and parameters, as far as lengths and shared prefixes go.

vLLM 0.11, vllm/benchmarks/datasets.py. `random` draws lengths evenly from floor(len x (1 - ratio)) to ceil(len x (1 + ratio));
a tokenizer's special tokens, which it subtracts, are left in. `prefix_repetition` has each prefix equally often, here in the
mean. Of ShareGPT the means are those of vLLM's pull request 11267, 246 and 235 tokens; the shape is taken to be lognormal
under vLLM's own filter, prompts of at most 1,024 tokens.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from sim.errors import ConfigError, listed, nearest
from sim.workload.lengths import Fixed, Lengths, Lognormal, Uniform

Parameters = Mapping[str, Any]
RANDOM = {"random_input_len": 1024, "random_output_len": 128, "random_range_ratio": 0.0, "random_prefix_len": 0}
PREFIX_REPETITION = {
    "prefix_repetition_prefix_len": 256,
    "prefix_repetition_suffix_len": 256,
    "prefix_repetition_num_prefixes": 10,
    "prefix_repetition_output_len": 128,
}
SONNET = {"sonnet_input_len": 550, "sonnet_output_len": 150, "sonnet_prefix_len": 200}
SHAREGPT: dict[str, Any] = {"sharegpt_output_len": None}
SHAREGPT_PROMPT = Lognormal(median=115, sigma=1.5, high=1024)
SHAREGPT_OUTPUT = Lognormal(median=134, sigma=1.2, high=1024)


def _random(given: Parameters) -> Parameters:
    ratio = given["random_range_ratio"]
    if not 0 <= ratio < 1:
        raise ConfigError(f"`random_range_ratio` must be from 0 to below 1, got {ratio}.")
    return {
        "prompt_tokens": _around(given["random_input_len"], ratio),
        "output_tokens": _around(given["random_output_len"], ratio),
        "prefix_tokens": given["random_prefix_len"],
    }


def _around(length: int, ratio: float) -> Lengths:
    low, high = max(1, math.floor(length * (1 - ratio))), math.ceil(length * (1 + ratio))
    return Fixed(low) if low == high else Uniform(low, high)


def _prefix_repetition(given: Parameters) -> Parameters:
    return {
        "prompt_tokens": Fixed(given["prefix_repetition_suffix_len"]),
        "output_tokens": Fixed(given["prefix_repetition_output_len"]),
        "prefix_tokens": given["prefix_repetition_prefix_len"],
        "num_prefixes": given["prefix_repetition_num_prefixes"],
    }


def _sonnet(given: Parameters) -> Parameters:
    prefix = given["sonnet_prefix_len"]
    if given["sonnet_input_len"] <= prefix:
        raise ConfigError(
            f"`sonnet_input_len` must be more than `sonnet_prefix_len` {prefix}, got {given['sonnet_input_len']}."
        )
    return {
        "prompt_tokens": Fixed(given["sonnet_input_len"] - prefix),
        "output_tokens": Fixed(given["sonnet_output_len"]),
        "prefix_tokens": prefix,
    }


def _sharegpt(given: Parameters) -> Parameters:
    fixed = given["sharegpt_output_len"]
    return {"prompt_tokens": SHAREGPT_PROMPT, "output_tokens": SHAREGPT_OUTPUT if fixed is None else Fixed(fixed)}


_DATASETS: dict[str, tuple[Mapping[str, Any], Callable[[Parameters], Parameters]]] = {
    "random": (RANDOM, _random),
    "prefix_repetition": (PREFIX_REPETITION, _prefix_repetition),
    "sonnet": (SONNET, _sonnet),
    "sharegpt": (SHAREGPT, _sharegpt),
}
PARAMETERS = tuple(name for defaults, _ in _DATASETS.values() for name in defaults)


def dataset_fields(name: str, given: Parameters) -> Parameters:
    """The fields of a workload that a dataset's parameters say. Raises ConfigError for another dataset's or a wrong kind."""
    if name not in _DATASETS:
        raise ConfigError(
            f"`dataset_name` must be {listed(list(_DATASETS), 'or')}, got {name!r}; of others give the lengths.{nearest(name, _DATASETS)}"
        )
    defaults, fields = _DATASETS[name]
    for key, value in given.items():
        if key not in defaults:
            raise ConfigError(
                f"`{key}` is not a parameter of the dataset {name}; it has {listed(list(defaults), 'and')}."
            )
        kinds = (int, float) if isinstance(defaults[key], float) else (int,)
        if type(value) not in kinds:
            raise ConfigError(f"`{key}` must be {'a number' if float in kinds else 'an integer'}, got {value!r}.")
    return fields({**defaults, **given})
