"""Screening on short slices, promotion to longer ones, and the finals on all that the search may see."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sim.search.evaluate import Outcome, Scenario, Task
from sim.search.ranking import Candidate, ranked
from sim.search.runner import Runner
from sim.search.slices import Slice, Split, representative
from sim.search.space import Params, Space, num_flags, num_gpus
from sim.search.strategies import ENUMERABLE, Distinct, propose

LITTLE_WORK = 60_000  # requests replayed in all; up to here every candidate is replayed in full
FEWEST_REQUESTS = 300  # in a screening slice: below, a P99 means nothing
SHARES = (0.05, 0.15)  # of the trace, by round of screening
PROMOTED = 4  # one in so many goes on
FINALISTS = 8
MANY_VALUES = 20  # of a knob, as replicas may have: each in the finals would be more than the search itself


class Round(NamedTuple):
    """A stage of the search: which part of the trace, and what share of all that may be seen."""

    name: str
    part: Slice
    share: float


@dataclass(frozen=True)
class Search:
    """One search of a space; `split` says what it may look at."""

    scenario: Scenario
    space: Space
    split: Split
    runner: Runner
    seed: int

    def run(self, trials: int) -> list[Candidate]:
        """Every candidate tried, each with its longest replay; the finalists were replayed on all that may be seen."""
        found = self._enumerated()
        if found is not None and len(found) <= trials:
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

    def _enumerated(self) -> list[Params] | None:
        """All that differ, or None where they are too many to look at."""
        if self.space.size > ENUMERABLE:
            return None
        return Distinct(self.scenario).simplest(self.space.candidates())

    def _proposed(self, trials: int, first: Round) -> list[Params]:
        def try_out(new: Sequence[Params], before: int) -> list[Outcome]:
            tasks = [Task(params, first.part) for params in new]
            return self.runner.run(tasks, first.name, before=before, total=trials)

        return list(propose(self.scenario, self.space, try_out, trials=trials, seed=self.seed).values())

    def _rounds(self, num_candidates: int) -> list[Round]:
        """Screening rounds for which the trace is long enough, and the finals."""
        num_requests = len(self.scenario.trace)
        finals = Round("finals", Slice(self.split.seen), 1.0)
        if num_candidates * num_requests <= LITTLE_WORK or num_candidates <= FINALISTS:
            return [finals]
        rng = np.random.default_rng([self.seed, 1])
        shares = [share for share in SHARES if share * num_requests >= FEWEST_REQUESTS]
        return [*(Round("screening", representative(self.split.seen, share, rng), share) for share in shares), finals]

    def _promote(self, candidates: Sequence[Candidate], following: Round) -> list[Candidate]:
        """The best go on; the rest keep what they have."""
        order = ranked(candidates, self.scenario.target)
        wanted = FINALISTS if following.share == 1.0 else max(FINALISTS, len(order) // PROMOTED)
        kept = [*order[:wanted], *self._of_other_values(order, wanted)]
        promoted = self.replay([candidate.params for candidate in kept], following)
        keys = {candidate.key for candidate in promoted}
        return promoted + [candidate for candidate in candidates if candidate.key not in keys]

    def _of_other_values(self, order: Sequence[Candidate], wanted: int) -> list[Candidate]:
        """The best with each value that the first `wanted` lack: what a slice does not show must not rule a value out."""
        chosen: dict[str, Candidate] = {}
        for name, values in self.space.knobs.items():
            for value in values if len(values) <= MANY_VALUES else ():
                having = [place for place, candidate in enumerate(order) if candidate.params[name] == value]
                if having and having[0] >= wanted:
                    chosen.setdefault(order[having[0]].key, order[having[0]])
        return list(chosen.values())

    def _candidate(self, params: Params, outcome: Outcome, share: float) -> Candidate:
        flags = num_flags(self.scenario.engine(params))
        return Candidate(params, flags, num_gpus(params, self.scenario.base), outcome, share)
