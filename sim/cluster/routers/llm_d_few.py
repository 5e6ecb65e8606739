"""llm-d's affinity filter and its score of tokens in flight, where few replicas hold anything of a prompt: without columns of scores."""

import math
from collections.abc import Mapping

from sim.cluster.routers.llm_d_scorers import MANY_TOKENS
from sim.engine.records import Floats


def sticky_among(
    shares: Mapping[int, float], in_flight: Floats, threshold: float, max_penalty_tokens: float
) -> list[int]:
    """Those that pass the affinity filter, by the shares of the prompt that some hold; none if it does not apply."""
    sticky = [replica for replica, share in shares.items() if share >= threshold]
    if sticky and max_penalty_tokens and len(sticky) < len(in_flight):
        fewest = min(map(in_flight.item, sticky))
        if fewest > max_penalty_tokens and fewest - in_flight.min() > max_penalty_tokens:  # nobody has fewer than none
            return []
    return sticky


def fewest_tokens(
    num_tokens: int, cached: Mapping[int, float], in_flight: Floats, sticky: list[int]
) -> list[int] | None:
    """The places with the fewest tokens after a prompt of so many is sent there: of the sticky ones, or of all where there are none.

    `cached` are tokens of it that some hold. All are whole numbers or halves, so that equals by tokens are equals by score, and only they;
    None where all have more than the score tells apart.
    """
    tokens = {replica: in_flight.item(replica) + (num_tokens - cached[replica]) for replica in sticky or cached}
    least = math.inf if sticky else in_flight.item(in_flight.argmin())
    fewest = min([*tokens.values(), least + num_tokens])
    if fewest >= MANY_TOKENS:
        return None
    best = [replica for replica, count in tokens.items() if count == fewest]
    if least + num_tokens == fewest:
        best += (in_flight == least).nonzero()[0].tolist()
    return sorted(best)
