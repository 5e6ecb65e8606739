"""The keys of one Hugging Face `config.json`, read with the type and range that each must have."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sim.errors import ModelError

LARGEST_SIZE = 10**9  # no dimension of a model comes near it; a larger number is a typing error


@dataclass(frozen=True, slots=True)
class HFConfig:
    """`values` by key; `source` is the file or catalogue entry that error messages name.

    Several keys name the same fact in different families: the first that is present and not null is read.
    Raises ModelError with key and source where a key is missing, of the wrong type or out of range.
    """

    values: Mapping[str, Any]
    source: str

    def get(self, *keys: str) -> Any:
        """The first of these keys that is set, or None."""
        for key in keys:
            if (value := self.values.get(key)) is not None:
                return value
        return None

    def has(self, key: str) -> bool:
        return self.get(key) is not None

    def size(self, *keys: str, default: int | None = None) -> int:
        """A whole number of at least 1; without a default the key must be there."""
        value = self.get(*keys)
        if value is None and default is None:
            raise ModelError(f"{self.source}: the key `{keys[0]}` is missing; a model's config.json must have it.")
        return self._whole_number(default if value is None else value, keys, at_least=1)

    def count(self, *keys: str, default: int = 0) -> int:
        """A whole number of at least 0."""
        value = self.get(*keys)
        return default if value is None else self._whole_number(value, keys, at_least=0)

    def number(self, key: str, default: float) -> float:
        """A finite number above 0."""
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LARGEST_SIZE:
            raise ModelError(f"{self.source}: `{key}` must be a number above 0, got {value!r}.")
        return float(value)

    def flag(self, key: str, *, default: bool = False) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ModelError(f"{self.source}: `{key}` must be true or false, got {value!r}.")
        return value

    def text(self, *keys: str, default: str | None = None) -> str:
        value = self.get(*keys)
        if value in (None, "") and default is not None:
            return default
        if not isinstance(value, str) or not value:
            got = "nothing" if value is None else repr(value)
            raise ModelError(f"{self.source}: `{self._name_of(keys)}` must be a text, got {got}.")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts, empty where the key is absent."""
        value = self.values.get(key) or []
        if not isinstance(value, list | tuple) or not all(isinstance(entry, str) for entry in value):
            raise ModelError(f"{self.source}: `{key}` must be a list of texts, got {value!r:.80}.")
        return tuple(value)

    def counts(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers of at least 0, empty where the key is absent."""
        value = self.values.get(key) or []
        if not isinstance(value, list | tuple):
            raise ModelError(f"{self.source}: `{key}` must be a list of numbers, got {value!r:.80}.")
        return tuple(self._whole_number(entry, (key,), at_least=0) for entry in value)

    def section(self, key: str) -> "HFConfig":
        """A nested object, empty where the key is absent."""
        value = self.values.get(key)
        if value is None:
            return HFConfig({}, self.source)
        if not isinstance(value, Mapping):
            raise ModelError(f"{self.source}: `{key}` must be an object, got {value!r:.80}.")
        return HFConfig(value, self.source)

    def _name_of(self, keys: tuple[str, ...]) -> str:
        return next((key for key in keys if self.has(key)), keys[0])

    def _whole_number(self, value: object, keys: tuple[str, ...], *, at_least: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value <= LARGEST_SIZE:
            raise ModelError(
                f"{self.source}: `{self._name_of(keys)}` must be a whole number from {at_least} to {LARGEST_SIZE:,}, got {value!r:.80}."
            )
        return value


def text_config(config: HFConfig) -> HFConfig:
    """The part that describes the language model: multimodal configs nest it."""
    nested = next((key for key in ("text_config", "llm_config", "language_config") if config.has(key)), None)
    return config.section(nested) if nested else config
