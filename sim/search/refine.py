"""What the winner's neighbours show is fed back, until none of them beats the answer."""

from collections.abc import Iterator, Sequence

from sim.search.fidelity import FINALISTS, Round, Search
from sim.search.final_selection import Verdict, judge
from sim.search.layouts import around
from sim.search.objectives import Target
from sim.search.ranking import Candidate, beats, ranked
from sim.search.sensitivity import SHARE, Sensitivity, first_look, own_outcome, sensitivity, settled
from sim.search.slices import Slice
from sim.search.space import Params, canonical


def refined(
    search: Search, candidates: Sequence[Candidate], verdict: Verdict, *, feeds_back: bool = True
) -> tuple[list[Candidate], Verdict, Sensitivity]:
    """All candidates, those included that were found beside the winner, the last verdict, and how its winner reacts."""
    found, part = list(candidates), first_look(search.split, search.seed)
    while True:
        winner = verdict.winner.candidate
        reactions = sensitivity(winner.params, search.space, part, search.runner)
        challengers = _challengers(search, found, winner.params, reactions, part) if feeds_back else []
        replayed = search.replay(challengers, Round("neighbours", Slice(search.split.seen), 1.0))
        found = _merged(found, replayed)
        again = verdict
        if any(beats(search.scenario.target, one.outcome, winner.outcome) for one in replayed):
            again = judge(search.scenario, found, search.split, search.runner, seed=search.seed) or verdict
        if again.winner.candidate.key == winner.key:
            return found, again, settled(reactions, winner.params, search.space, search.scenario.target, search.runner)
        verdict = again


def _challengers(
    search: Search, found: Sequence[Candidate], winner: Params, reactions: Sensitivity, part: Slice
) -> list[Params]:
    """Neighbours not yet replayed in full: those that beat the winner on the slice, and its best layouts there."""
    known = {candidate.key for candidate in found if candidate.share == 1.0}
    neighbours = (*_better(winner, reactions, search.scenario.target), *_best_layouts(search, winner, part))
    return list({key: params for params in neighbours if (key := canonical(params)) not in known}.values())


def _better(winner: Params, reactions: Sensitivity, target: Target) -> Iterator[Params]:
    for name, points in reactions.items():
        own = own_outcome(points, winner[name])
        yield from ({**winner, name: point.value} for point in points if beats(target, point.outcome, own))


def _best_layouts(search: Search, winner: Params, part: Slice) -> list[Params]:
    laid_out = search.replay(around(winner, search.space), Round("neighbours", part, SHARE))
    return [candidate.params for candidate in ranked(laid_out, search.scenario.target)[:FINALISTS]]


def _merged(found: Sequence[Candidate], new: Sequence[Candidate]) -> list[Candidate]:
    keys = {candidate.key for candidate in new}
    return [*(candidate for candidate in found if candidate.key not in keys), *new]
