"""Whether a request is prefilled elsewhere before it is decoded.

After llm-d's deciders (llm-d/llm-d-router @ebab6879). Deliberate differences: what the decode replica has cached is what its
cache holds at this instant, where llm-d asks the index of its router; and prefix_based has the sample configuration's 16
tokens by default, where llm-d's 0 means never.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sim.cluster.options import chosen, option


@dataclass(frozen=True)
class Decider(ABC):
    """A rule with its options, checked."""

    @abstractmethod
    def prefills_elsewhere(self, num_prompt_tokens: int, num_cached_tokens: int) -> bool:
        """Whether a prompt, of which the chosen decode replica has so many tokens cached, is prefilled by another."""


@dataclass(frozen=True)
class Always(Decider):
    """Every request."""

    def prefills_elsewhere(self, num_prompt_tokens: int, num_cached_tokens: int) -> bool:  # noqa: ARG002 - a decider's interface
        return True


@dataclass(frozen=True)
class PrefixBased(Decider):
    """Where at least so many tokens are to be computed; 0 for never."""

    non_cached_tokens: int = option(16, at_least=0)

    def prefills_elsewhere(self, num_prompt_tokens: int, num_cached_tokens: int) -> bool:
        return 0 < self.non_cached_tokens <= num_prompt_tokens - num_cached_tokens


DECIDERS: dict[str, type[Decider]] = {"always": Always, "prefix_based": PrefixBased}


def decider(given: str | Mapping[str, Any]) -> Decider:
    """The decider that was asked for, by name or with options; ConfigError for an unknown one or a broken rule."""
    return chosen("decider", DECIDERS, given)
