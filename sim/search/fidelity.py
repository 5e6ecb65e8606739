"""Successive rounds: candidates are screened on short slices, the best promoted to longer ones, the finals on all seen windows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sim.search.blueprint import Params
from sim.search.evaluate import Outcome, Scenario, Task
from sim.search.ranking import Candidate, ranked
from sim.search.runner import Runner
from sim.search.slices import Slice, Split, representative
from sim.search.space import Space
from sim.search.strategies import ENUMERABLE, Distinct, propose

LITTLE_WORK = 60_000  # requests replayed in all; up to here every candidate is replayed in full
FEWEST_REQUESTS = 300  # in a screening slice; with fewer a P99 means nothing
SHARES = (0.05, 0.15)  # of the trace, by round of screening
PROMOTED = 4  # one in this many is promoted
FINALISTS = 8
MANY_VALUES = 20  # of a knob, such as replicas: one finalist for each value would cost more than the search


class Round(NamedTuple):
    """A round of the search: its name, the slice that it replays, and the share of the seen windows that this is (0 to 1)."""

    name: str
    part: Slice
    share: float


@dataclass(frozen=True)
class Search:
    """One search of a space, on the windows that `split` lets it see."""

    scenario: Scenario
    space: Space
    split: Split
    runner: Runner
    seed: int

    def run(self, trials: int) -> list[Candidate]:
        """All candidates that were tried, each with its longest replay; the finalists were replayed on all seen windows."""
        found = self._enumerated(trials)
        if found is not None:
            first, *later = self._rounds(len(found))
        else:
            first, *later = self._rounds(trials)
            found = self._proposed(trials, first)
        candidates = self.replay(found, first)
        for following in later:
            candidates = self._promote(candidates, following)
        return candidates

    def replay(self, found: Sequence[Params], stage: Round) -> list[Candidate]:
        outcomes = self.runner.run([Task(params, stage.part) for params in found], stage.name)
        return [self._candidate(params, outcome, stage.share) for params, outcome in zip(found, outcomes, strict=True)]

    def _enumerated(self, trials: int) -> list[Params] | None:
        """All candidates that behave differently; None if they are more than `trials`, or the space has more than ENUMERABLE."""
        if self.space.size > ENUMERABLE:
            return None
        return Distinct(self.scenario).simplest(self.space.candidates(), trials)

    def _proposed(self, trials: int, first: Round) -> list[Params]:
        def try_out(new: Sequence[Params], before: int) -> list[Outcome]:
            tasks = [Task(params, first.part) for params in new]
            return self.runner.run(tasks, first.name, before=before, total=trials)

        return list(propose(self.scenario, self.space, try_out, trials=trials, seed=self.seed).values())

    def _rounds(self, num_candidates: int) -> list[Round]:
        """The screening rounds for which the trace is long enough, and the finals; only the finals if there is little work."""
        num_requests = len(self.scenario.trace)
        finals = Round("finals", Slice(self.split.seen), 1.0)
        if num_candidates * num_requests <= LITTLE_WORK or num_candidates <= FINALISTS:
            return [finals]
        rng = np.random.default_rng([self.seed, 1])
        shares = [share for share in SHARES if share * num_requests >= FEWEST_REQUESTS]
        return [*(Round("screening", representative(self.split.seen, share, rng), share) for share in shares), finals]

    def _promote(self, candidates: Sequence[Candidate], following: Round) -> list[Candidate]:
        """Replay the best on the following round's slice; the rest keep the outcome that they have."""
        order = ranked(candidates, self.scenario.target)
        wanted = FINALISTS if following.share == 1.0 else max(FINALISTS, len(order) // PROMOTED)
        kept = [*order[:wanted], *self._of_other_values(order, wanted)]
        promoted = self.replay([candidate.params for candidate in kept], following)
        keys = {candidate.key for candidate in promoted}
        return promoted + [candidate for candidate in candidates if candidate.key not in keys]

    def _of_other_values(self, order: Sequence[Candidate], wanted: int) -> list[Candidate]:
        """For each value of a knob that none of the first `wanted` has, the best candidate with it: a short slice must not exclude it."""
        chosen: dict[str, Candidate] = {}
        for name, values in self.space.knobs.items():
            for value in values if len(values) <= MANY_VALUES else ():
                having = [place for place, candidate in enumerate(order) if candidate.params[name] == value]
                if having and having[0] >= wanted:
                    chosen.setdefault(order[having[0]].key, order[having[0]])
        return list(chosen.values())

    def _candidate(self, params: Params, outcome: Outcome, share: float) -> Candidate:
        made = self.scenario.blueprint
        return Candidate(params, made.num_flags(params), made.num_gpus(params), outcome, share)
