"""How many drafts are accepted: as the speculative config says, as the user says, or as measured where nobody says."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from sim.errors import ConfigError
from sim.specs.speculation import Speculation
from sim.specs.speculative_config import SpeculativeConfig, check_rates

AcceptanceLike = float | Sequence[float]
"""A mean acceptance length from 1 on, or the shares of verifications in which the first, the first two, ... drafts are accepted."""

SPEED_BENCH = "SPEED-Bench's coding prompts, large models with vLLM on B300 (speculators, golden acceptance lengths)"
MEASURED_LENGTHS: Mapping[str, tuple[float, ...]] = {
    "eagle3": (1.812, 2.418, 2.857, 3.188, 3.430, 3.522, 3.637, 3.753),  # means of 6: Kimi-K2.5, MiniMax-M3
    "mtp": (1.880, 2.562, 3.034, 3.334, 3.574, 3.754, 3.844, 3.934),  # of 5: DeepSeek-V4, GLM-5.2, Qwen3.5-397B
}
"""Mean acceptance lengths with 1, 2, ... drafts, by method."""


class AcceptedRates(NamedTuple):
    """Shares of verifications in which the first, the first two, ... drafts are accepted; `note` where they were not told."""

    rates: tuple[float, ...]
    note: str | None = None

    @property
    def mean_length(self) -> float:
        """Tokens that a verification yields in the mean."""
        return 1 + sum(self.rates)


def checked_acceptance(given: AcceptanceLike | None) -> tuple[float, ...] | float | None:
    """What a user said, in a form that can be compared. Raises ConfigError for what no drafts do."""
    if given is None:
        return None
    if isinstance(given, int | float):
        if given >= 1:
            return float(given)
        given = (given,)
    rates = tuple(float(rate) for rate in given)
    check_rates("acceptance", rates)
    return rates


def accepted_rates(
    config: SpeculativeConfig, speculation: Speculation, given: tuple[float, ...] | float | None
) -> AcceptedRates:
    """By position, for all drafts that there may be. Raises ConfigError where nothing tells, or two things do."""
    count = speculation.num_speculative_tokens
    if config.is_synthetic:
        if given is not None:
            raise ConfigError(
                "acceptance and a synthetic rejection_sample_method both say how drafts fare; leave one out."
            )
        length = config.synthetic_acceptance_length
        rates = config.synthetic_acceptance_rates
        return AcceptedRates(rates if rates is not None else rates_of_length(length or 1.0, count))
    if isinstance(given, float):
        if given > count + 1:
            raise ConfigError(f"acceptance must be at most 1 + num_speculative_tokens ({count + 1}), got {given:g}.")
        return AcceptedRates(rates_of_length(given, count))
    if given is not None:
        if len(given) < count:
            raise ConfigError(f"acceptance must have a rate for each of {count} drafts, got {len(given)}.")
        return AcceptedRates(given[:count])
    return _as_measured(speculation.method, count)


def rates_of_length(length: float, num_drafts: int) -> tuple[float, ...]:
    """Those of a mean acceptance length with the least variance, as vLLM's synthetic sampler has them (config/speculative.py)."""
    accepted = length - 1
    num_sure = int(accepted)
    rates = [1.0] * num_sure + [accepted - num_sure] + [0.0] * (num_drafts - num_sure - 1)
    return tuple(rates[:num_drafts])


def _as_measured(method: str, num_drafts: int) -> AcceptedRates:
    lengths = MEASURED_LENGTHS.get(method, ())
    if num_drafts > len(lengths):
        known = f", beyond {len(lengths)} drafts" if lengths else ""
        raise ConfigError(
            f"how many drafts of method {method}{known} are accepted is not known here; say `acceptance` (--acceptance 2.4,"
            " a mean length, or 0.7,0.5,0.3, rates by position), as vLLM logs it under SpecDecoding metrics."
        )
    rates = tuple(other - one for one, other in pairwise((1.0, *lengths[:num_drafts])))
    found = AcceptedRates(_falling(rates))
    note = (
        f"drafts are accepted as measured for {method} on {SPEED_BENCH}: {found.mean_length:.2f} tokens a verification;"
        " say `acceptance` for yours."
    )
    return found._replace(note=note)


def _falling(rates: tuple[float, ...]) -> tuple[float, ...]:
    """Means of measurements may rise by noise: each as high as the one before at most."""
    fallen: list[float] = []
    for rate in rates:
        fallen.append(min(rate, fallen[-1]) if fallen else rate)
    return tuple(fallen)
