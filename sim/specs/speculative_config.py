"""What `--speculative-config` says, key by key, in the names of vLLM's config/speculative.py (0.33)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, Self

from sim.errors import ConfigError, nearest
from sim.specs.speculation import METHODS

REFUSED_METHODS = ("medusa", "mlp_speculator", "suffix", "dspark", "custom_class", "extract_hidden_states")
"""Methods of vLLM's whose schedule or cost no rule or measurement here tells."""
NAMED_METHODS = (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"))
"""What vLLM takes a draft model for by a word in its name, in this order; any other drafts as a model of its own."""

HARMLESS_KEYS = (
    *("revision", "code_revision", "draft_load_config", "moe_backend", "attention_backend", "draft_sample_method"),
    *("use_local_argmax_reduction", "index_share_for_mtp_iteration", "use_heterogeneous_vocab", "disable_logprobs"),
    *("prompt_lookup_max", "prompt_lookup_min"),
)
"""Keys that change no figure here: how drafts are looked up or drawn shows in how many are accepted, which is told apart."""
OFF_BY_DEFAULT: Mapping[str, object] = {
    "enforce_eager": False,
    "disable_padded_drafter_batch": False,
    "enable_adaptive_verification": False,
}
UNSIMULATED_KEYS = (
    *("kv_cache_dtype", "max_model_len", "disable_by_batch_size", "speculative_token_tree", "dspark_draft_topk"),
    *("suffix_decoding_max_tree_depth", "suffix_decoding_max_cached_requests"),
    *("suffix_decoding_max_spec_factor", "suffix_decoding_min_token_prob", "synthetic_acceptance_rate"),
)

BatchSizes = tuple[tuple[int, int, int], ...]
"""First and last batch size of a range, and the drafts of each request in batches of those sizes."""


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """Checked by itself; what depends on the model or the version of vLLM is checked where it is resolved.

    `num_speculative_tokens` None is for methods whose model says how many. Raises ConfigError for what vLLM refuses, and
    for what is not simulated.
    """

    method: str | None = None
    model: str | None = None
    num_speculative_tokens: int | None = None
    draft_tensor_parallel_size: int | None = None
    quantization: str | None = None
    parallel_drafting: bool = False
    num_speculative_tokens_per_batch_size: BatchSizes | None = None
    disable_eagle_block_drop: bool = False
    disable_lookahead_block_hashes: bool = False
    rejection_sample_method: str = "standard"
    synthetic_acceptance_length: float | None = None
    synthetic_acceptance_rates: tuple[float, ...] | None = None

    @classmethod
    def parse(cls, given: object, place: str = "speculative_config") -> Self:
        """The config in a JSON object. Raises ConfigError that begins with `place`."""
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            raise ConfigError(
                f'{place} must be an object such as {{"method": "eagle3", "num_speculative_tokens": 3}}, got {given!r:.80}.'
            )
        try:
            return cls(**{key: _frozen(value) for key, value in given.items() if _is_field(key, value)})
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from None

    def __post_init__(self) -> None:
        _check_types(self)
        if self.chosen_method in REFUSED_METHODS:
            raise ConfigError(f"method {self.chosen_method} is not simulated; use one of {', '.join(METHODS)}.")
        if self.chosen_method not in METHODS:
            raise ConfigError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}.")
        if self.chosen_method in {"eagle", "eagle3", "dflash", "draft_model"} and self.model is None:
            raise ConfigError(f"method {self.method} needs a `model`, its drafter; name one.")
        self._check_acceptance()

    def _check_acceptance(self) -> None:
        """vLLM's own rules for synthetic acceptance, as far as they need no number of drafts."""
        rates, length = self.synthetic_acceptance_rates, self.synthetic_acceptance_length
        if self.rejection_sample_method not in {"standard", "synthetic", "block"}:
            raise ConfigError(
                f"rejection_sample_method must be standard, synthetic or block, got {self.rejection_sample_method!r}."
            )
        if self.is_synthetic != (rates is not None or length is not None) or (rates is not None and length is not None):
            raise ConfigError(
                "rejection_sample_method synthetic goes with either synthetic_acceptance_rates or"
                " synthetic_acceptance_length, and neither of them without it."
            )
        if rates is not None:
            check_rates("synthetic_acceptance_rates", rates)

    @property
    def is_synthetic(self) -> bool:
        return self.rejection_sample_method == "synthetic"

    @property
    def chosen_method(self) -> str:
        """The method, or what vLLM takes a nameless one for; those of one model's prediction layers are all mtp."""
        method = self.method
        if method is None and self.model in {None, "ngram", "[ngram]"}:
            method = "ngram" if self.model else None
        elif method is None:
            method = next((known for word, known in NAMED_METHODS if word in str(self.model).lower()), "draft_model")
        if method is None:
            raise ConfigError("a `method` or a `model` is needed, got neither.")
        if method == "[ngram]":
            return "ngram"
        return "mtp" if method.endswith("_mtp") else method

    def to_json(self) -> dict[str, Any]:
        """The keys that are given, as JSON has them."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        defaults = {entry.name: entry.default for entry in fields(self)}
        return {name: _thawed(value) for name, value in values.items() if value != defaults[name]}


def check_rates(name: str, rates: tuple[float, ...]) -> None:
    """Raises ConfigError unless they can be the shares of steps in which the first, the first two, ... drafts are accepted."""
    if not rates or any(not 0 <= rate <= 1 for rate in rates) or any(one < other for one, other in pairwise(rates)):
        raise ConfigError(f"{name} must lie between 0 and 1 and must not increase, got {list(rates)}.")


def _is_field(key: str, value: object) -> bool:
    """Whether a key is one of the config's; those that change nothing are not. Raises ConfigError for all others."""
    names = [entry.name for entry in fields(SpeculativeConfig)]
    if key in names:
        return value is not None
    if value is None or key in HARMLESS_KEYS or (key in OFF_BY_DEFAULT and value == OFF_BY_DEFAULT[key]):
        return False
    if key in UNSIMULATED_KEYS or key in OFF_BY_DEFAULT:
        raise ConfigError(f"{key} {value!r:.40} is not simulated; leave it out.")
    if key == "tensor_parallel_size":
        raise ConfigError("tensor_parallel_size is called draft_tensor_parallel_size there.")
    raise ConfigError(f"{key!r} is not a key of vLLM's speculative config.{nearest(key, (*names, *HARMLESS_KEYS))}")


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def _thawed(value: Any) -> Any:
    return list(map(_thawed, value)) if isinstance(value, tuple) else value


def _is_count(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_ranges(value: Any) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(entry, tuple)
        and len(entry) == 3
        and all(isinstance(number, Integral) for number in entry)
        and 1 <= entry[0] <= entry[1]
        for entry in value
    )


def _is_numbers(value: Any) -> bool:
    return isinstance(value, tuple) and all(map(_is_number, value))


_KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(
        ("method", "model", "quantization", "rejection_sample_method"), (lambda v: isinstance(v, str), "text")
    ),
    **dict.fromkeys(("num_speculative_tokens", "draft_tensor_parallel_size"), (_is_count, "an integer of at least 1")),
    "parallel_drafting": (lambda value: isinstance(value, bool), "true or false"),
    "num_speculative_tokens_per_batch_size": (_is_ranges, "a list of [first size, last size, drafts]"),
    "synthetic_acceptance_length": (_is_number, "a number"),
    "synthetic_acceptance_rates": (_is_numbers, "a list of numbers"),
}


def _check_types(config: SpeculativeConfig) -> None:
    for name, (is_right, kind) in _KINDS.items():
        value = getattr(config, name)
        if value is not None and not is_right(value):
            raise ConfigError(f"{name} must be {kind}, got {_thawed(value)!r:.80}.")
