"""What a field of EngineConfig says of itself: how vLLM's command line spells it, which values it takes, since which version."""

from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal, TypeGuard

from sim.errors import ConfigError, check_choice, listed
from sim.specs.speculative_config import SpeculativeConfig

Kind = Literal["integer", "number", "switch", "text", "texts", "sizes", "object"]
"""How the words behind a flag are read."""
Check = Callable[[str, Any], None]
"""Raises ConfigError, naming the argument of that name, for a value that it does not take."""

DENSELY = "None"
"""A retention interval, as vLLM's command line spells it."""
MAX_COUNT = 2**31 - 1  # of tokens, requests, blocks and GPUs, which vLLM's kernels hold in 32 bits
MAX_BYTES = 2**60
MAX_GIB = 2**30
MAX_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # vLLM's config/lora.py
BLOCK_SIZES = (1, 8, 16, 32, 64, 128, 256)  # vLLM's choices for --block-size


@dataclass(frozen=True, slots=True)
class Argument:
    """`help` is its line under --help. `since` is the first vLLM version that has it, where older ones do not.

    `defaults` are values by the version that brought them, where None leaves the choice to the version alone.
    """

    kind: Kind
    help: str
    check: Check
    choices: tuple[str, ...] = ()
    since: str | None = None
    defaults: dict[str, Any] = field(default_factory=dict)
    is_flag: bool = True  # else serve_command.py has a rule for its flag
    what_ifs: tuple[str, ...] = ()  # values that no vLLM has


def argument(default: Any, kind: Kind, help_text: str, check: Check, **more: Any) -> Any:
    """A field that is an engine argument; the others below are those of common kinds."""
    return field(default=default, metadata={"argument": Argument(kind, help_text, check, **more)})


def switch(default: bool | None, help_text: str, **more: Any) -> Any:
    return argument(default, "switch", help_text, _check_switch, **more)


def count(default: int | None, help_text: str, *, at_least: int = 1, at_most: int = MAX_COUNT, **more: Any) -> Any:
    def check(name: str, value: object) -> None:
        if _is_integer(value) and at_least <= value <= at_most:
            return
        bound = f"most {at_most:,}" if _is_integer(value) and value > at_most else f"least {at_least}"
        raise ConfigError(f"{name} must be an integer of at {bound}, got {value!r:.40}; leave it out for the default.")

    return argument(default, "integer", help_text, check, **more)


def choice(default: str | None, choices: tuple[str, ...], **more: Any) -> Any:
    return argument(
        default,
        "text",
        listed(choices, "or"),
        lambda name, value: check_choice(name, value, choices),
        choices=choices,
        **more,
    )


def check_max_model_len(name: str, value: object) -> None:
    if value != "auto" and not (_is_integer(value) and 2 <= value <= MAX_COUNT):
        raise ConfigError(
            f"{name} must be an integer of at least 2 (a prompt token and a generated one) and at most {MAX_COUNT:,}, "
            f"or 'auto', got {value!r:.40}."
        )


def check_gpu_memory_utilization(name: str, value: object) -> None:
    if not (_is_number(value) and 0 < value <= 1):
        raise ConfigError(
            f"{name} must be a fraction of the GPU's memory above 0 and up to 1, got {value!r}; 0.9 means 90 %."
        )


def check_watermark(name: str, value: object) -> None:
    if not (_is_number(value) and 0 <= value < 1):
        raise ConfigError(f"{name} must be a fraction of the KV blocks, at least 0 and below 1, got {value!r}.")


def check_kv_offloading_size(name: str, value: object) -> None:
    if not (_is_number(value) and 0 <= value < MAX_GIB):
        raise ConfigError(f"{name} must be GiB of host memory, at least 0 and below {MAX_GIB:,}, got {value!r:.40}.")


def check_swap_space(name: str, value: object) -> None:
    if not (_is_number(value) and 0 <= value < MAX_GIB):
        raise ConfigError(
            f"{name} must be GiB of host memory a GPU, at least 0 and below {MAX_GIB:,}, got {value!r:.40}."
        )


def check_cpu_offload_gb(name: str, value: object) -> None:
    if not (_is_number(value) and 0 <= value < MAX_GIB):
        raise ConfigError(f"{name} must be GiB of weights a GPU, at least 0 and below {MAX_GIB:,}, got {value!r:.40}.")


def check_layer_partition(name: str, value: object) -> None:
    if not _are_counts(value):
        raise ConfigError(
            f"{name} must be the layers of each pipeline stage, at least 1, such as [20, 12], got {value!r:.80}."
        )


def check_block_size(name: str, value: object) -> None:
    if not _is_integer(value) or value not in BLOCK_SIZES:
        raise ConfigError(f"{name} must be one of {', '.join(map(str, BLOCK_SIZES))} tokens, got {value!r}.")


def check_max_lora_rank(name: str, value: object) -> None:
    if not _is_integer(value) or value not in MAX_LORA_RANKS:
        raise ConfigError(f"{name} must be one of {', '.join(map(str, MAX_LORA_RANKS))}, got {value!r:.40}.")


def check_quantization(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a name such as fp8, got {value!r}.")


def check_retention_interval(name: str, value: object) -> None:
    if value != DENSELY and not (_is_integer(value) and 0 <= value <= MAX_COUNT):
        raise ConfigError(
            f"{name} must be an integer of at least 0 and at most {MAX_COUNT:,}, or {DENSELY!r} to keep all, got {value!r:.40}."
        )


def check_offload_params(name: str, value: object) -> None:
    if not (isinstance(value, tuple | list | set | frozenset) and all(isinstance(one, str) and one for one in value)):
        raise ConfigError(f"{name} must be names of weights such as experts or down_proj, got {value!r:.80}.")


def check_speculative_config(name: str, value: object) -> None:
    SpeculativeConfig.parse(value, name)


def check_capture_sizes(name: str, value: object) -> None:
    if not _are_counts(value):
        raise ConfigError(
            f"{name} must be a list of integers from 1 to {MAX_COUNT:,}, got {value!r:.80}; "
            "use enforce_eager or cudagraph_mode NONE to capture nothing."
        )


def _are_counts(value: object) -> bool:
    """Whether it lists integers from 1 to MAX_COUNT, at least one."""
    return (
        isinstance(value, tuple | list)
        and bool(value)
        and all(_is_integer(one) and 1 <= one <= MAX_COUNT for one in value)
    )


def _is_integer(value: object) -> TypeGuard[int]:
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def _is_number(value: object) -> TypeGuard[float]:
    return type(value) in (int, float) or (isinstance(value, Real) and not isinstance(value, bool))


def _check_switch(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, got {value!r}.")
