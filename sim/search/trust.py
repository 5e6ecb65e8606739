"""How far the forecast of a candidate can be trusted, and how far off its step times may be."""

from collections.abc import Iterable

from sim.measure.confidence import Confidence, confidence, traits
from sim.search.evaluate import Scenario
from sim.search.space import Params

GIVEN_BAND = 0.1  # of step times from elsewhere, whose errors nobody has measured; most of the roofline's are smaller


def forecast_confidence(scenario: Scenario, params: Params) -> Confidence | None:
    """By the errors on measured runs like the candidate; None where step times are given. Raises SimError as `deploy` does."""
    if scenario.step_time is not None:
        return None
    return confidence(traits(scenario.model, scenario.gpu, scenario.deploy(params).engine))


def forecast_band(scenario: Scenario, candidates: Iterable[Params]) -> float | None:
    """The widest band on TPOT among the candidates, as a share; None where step times are given."""
    found = [forecast_confidence(scenario, params) for params in candidates]
    return max((one.bands["tpot"] / 100 for one in found if one), default=None)


def step_times_off(band: float | None) -> float:
    """By what share step times may be off."""
    return GIVEN_BAND if band is None else band
