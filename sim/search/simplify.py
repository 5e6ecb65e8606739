"""Takes back what makes no difference: the leader with fewer flags."""

from collections.abc import Mapping

from sim.search.fidelity import Round, Search
from sim.search.ranking import Candidate, is_near, ranked
from sim.search.slices import Slice
from sim.search.space import Params


def simplified(search: Search, candidates: list[Candidate]) -> list[Candidate]:
    """The candidates and, replayed in full, the leader without each of its flags and without all that do not matter."""
    in_full = [candidate for candidate in candidates if candidate.share == 1.0]
    order = ranked(in_full, search.scenario.target)
    if not order:
        return candidates
    leader, known = order[0], {candidate.key for candidate in in_full}
    tried = _without_one(search, leader)

    def is_spare(candidate: Candidate) -> bool:
        is_feasible = candidate.outcome.is_feasible
        return is_feasible and is_near(search.scenario.target, leader.metrics, candidate.metrics)

    spare = {name: None for name, candidate in tried.items() if is_spare(candidate)}
    tried_all = _replay(search, {"all": {**leader.params, **spare}}) if len(spare) > 1 else {}
    new = {candidate.key: candidate for candidate in (*tried.values(), *tried_all.values())}
    added = [candidate for key, candidate in new.items() if key not in known]
    replaced = {candidate.key for candidate in added}
    return [*(candidate for candidate in candidates if candidate.key not in replaced), *added]


def _without_one(search: Search, leader: Candidate) -> dict[str, Candidate]:
    """By flag: the leader with that knob left to vLLM, where the space allows it."""
    flags = [name for name, value in leader.params.items() if value is not None and None in search.space.knobs[name]]
    changed = {name: {**leader.params, name: None} for name in flags}
    return _replay(search, {name: params for name, params in changed.items() if search.space.allows(params)})


def _replay(search: Search, params: Mapping[str, Params]) -> dict[str, Candidate]:
    stage = Round("simplifying", Slice(search.split.seen), 1.0)
    allowed = {name: one for name, one in params.items() if search.space.allows(one)}
    return dict(zip(allowed, search.replay(list(allowed.values()), stage), strict=True))
