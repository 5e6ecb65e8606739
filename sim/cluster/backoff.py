"""How long to wait before a request is tried again: longer each time, up to a limit, and never quite the same."""

from dataclasses import dataclass
from random import Random

from sim.cluster.options import option


@dataclass(frozen=True)
class BackoffOptions:
    """Defaults of SGLang's gateway (sgl-project/sglang, sgl-model-gateway/src/main.rs @01f6c92a); `retries` 0 is none."""

    retries: int = option(5, at_least=0)
    backoff_s: float = option(0.05, at_least=0)
    backoff_factor: float = option(1.5, at_least=1)
    max_backoff_s: float = option(30.0, at_least=0)
    jitter: float = option(0.2, at_least=0, at_most=1)


def backoff_s(number: int, options: BackoffOptions, rng: Random) -> float:
    """Seconds before retry `number`, counted from 0; the jitter is drawn evenly on both sides."""
    plain_s = min(options.max_backoff_s, options.backoff_s * options.backoff_factor**number)
    return plain_s * (1 + options.jitter * rng.uniform(-1, 1))
