"""What an autoscaler gets to see: the pool at an instant, and the arrivals and answers of a window."""

from collections import deque
from collections.abc import Iterable
from math import isnan
from typing import NamedTuple

from sim.cluster.autoscaling.autoscaler import Autoscaler, Observed, Shown
from sim.cluster.engine_role import Role
from sim.cluster.errand import Errand
from sim.cluster.places import Place, Places, State


class Answered(NamedTuple):
    """A request that was answered by the replica in the place of that number; `tpot_s` is None where there was no second token, and that of an answer where
    there were several.

    Or a prompt that it has computed for another, which brings no tokens.
    """

    at_s: float
    number: int
    first_token_s: float
    ttft_s: float
    tpot_s: float | None
    num_output_tokens: int


class Arrived(NamedTuple):
    """A request that came, with its prompt as it was then."""

    errand: Errand
    num_prompt_tokens: int


class Watch:
    """Arrivals and answers, for as long as the window of a pool's autoscaler.

    Arrivals are those that it was sent, and those sent nowhere yet; all of them, if it prefills for others.
    """

    def __init__(self, pool: int, autoscaler: Autoscaler, role: Role = "both") -> None:
        self._pool = pool
        self._role = role
        self._window_s = autoscaler.window_s
        self._together = autoscaler.together
        self._arrived: deque[Arrived] = deque()
        self._answered: deque[Answered] = deque()

    def arrived(self, errand: Errand) -> None:
        """A request has come."""
        self._arrived.append(Arrived(errand, errand.attempt.num_prompt_tokens))

    def answered(self, errand: Errand, number: int, now_s: float) -> None:
        """A replica has answered it."""
        first_s, num_each = errand.first_token_s, errand.num_answer_tokens
        tpot_s = (now_s - first_s) / (num_each - 1) if num_each > 1 else None
        ttft_s, num_tokens = first_s - errand.came_s, errand.num_output_tokens
        self._answered.append(Answered(now_s, number, first_s, ttft_s, tpot_s, num_tokens))

    def prefilled(self, errand: Errand, number: int, now_s: float) -> None:
        """A replica has computed its prompt for another."""
        self._answered.append(Answered(now_s, number, now_s, now_s - errand.came_s, None, 0))

    def observed(self, now_s: float, places: Places, errands: dict[int, Errand], queue: Iterable[Errand]) -> Observed:
        """The pool now; `errands` are the open requests by row, and `queue` those of them that wait at the gateway."""
        since_s = now_s - self._window_s
        while self._arrived and self._arrived[0].errand.came_s <= since_s:
            self._arrived.popleft()
        while self._answered and self._answered[0].at_s <= since_s:
            self._answered.popleft()
        pool = self._pool
        arrived = [one for one in self._arrived if self._role == "prefill" or _is_of(one.errand, pool)]
        outputs = [answer.num_output_tokens for answer in self._answered if places[answer.number].pool == pool]
        return Observed(
            now_s,
            places.num_wanted(pool),
            [self._shown(place, now_s, errands) for place in places.of_pool(pool, State.READY)],
            num_draining=len(places.of_pool(pool, State.DRAINING)),
            queued_waits_s=[now_s - errand.came_s for errand in queue],
            num_arrived=len(arrived),
            num_prompt_tokens=sum(one.num_prompt_tokens for one in arrived),
            mean_output_tokens=sum(outputs) / len(outputs) if outputs else 0.0,
            computes_prompts=self._role != "decode",
            generates=self._role != "prefill",
        )

    def _shown(self, place: Place, now_s: float, errands: dict[int, Errand]) -> Shown:
        assert place.tenant is not None, "it is ready"
        metrics = self._together(place.tenant.engines_now)
        if not self._window_s:
            return Shown(*metrics)
        since_s = now_s - self._window_s
        answers = [answer for answer in self._answered if answer.number == place.number]
        ttfts_s = [answer.ttft_s for answer in answers if answer.first_token_s > since_s]
        for request in place.in_flight:
            errand = errands[request.index]
            first_s = errand.first_token_s if request is errand.attempt else request.first_token_s
            if isnan(first_s) or first_s > now_s:
                ttfts_s.append(now_s - errand.came_s)
            elif first_s > since_s:
                ttfts_s.append(first_s - errand.came_s)
        return Shown(*metrics, ttfts_s, [answer.tpot_s for answer in answers if answer.tpot_s is not None])


def _is_of(errand: Errand, pool: int) -> bool:
    return errand.address is None or errand.address.pool == pool
