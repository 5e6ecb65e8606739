"""What data-parallel ranks in lock step cost each other: counted while they run."""

from sim.engine.rank_steps import RanksDecoding, num_tokens_in_step
from sim.steptime.protocol import Agreement


class RankRecords:
    """Of all ranks: `num_steps` that they took together, in so many waves, and `dummy_steps` of each.

    `step_s` is how long the steps lasted, `own_s` how long ranks would have taken for theirs by themselves, over all ranks.
    Of `num_computed_tokens`, padding included, requests asked for `num_tokens`. Where they `may_split`, `num_split_steps` ran as two
    micro-batches.
    """

    def __init__(self, num_ranks: int, *, may_split: bool = False) -> None:
        self.num_ranks = num_ranks
        self.may_split = may_split
        self.num_waves = 0
        self.num_steps = 0
        self.num_split_steps = 0
        self.step_s = 0.0
        self.own_s = 0.0
        self.num_tokens = 0
        self.num_computed_tokens = 0
        self.dummy_steps = [0] * num_ranks

    def add(self, others: "RankRecords") -> None:
        """What as many ranks have cost each other elsewhere, or before."""
        self.num_waves += others.num_waves
        self.num_steps += others.num_steps
        self.num_split_steps += others.num_split_steps
        self.step_s += others.step_s
        self.own_s += others.own_s
        self.num_tokens += others.num_tokens
        self.num_computed_tokens += others.num_computed_tokens
        self.dummy_steps = [own + more for own, more in zip(self.dummy_steps, others.dummy_steps, strict=True)]

    def decoded(self, ranks: RanksDecoding, num_steps: int) -> None:
        """Steps in which ranks only decode or idle."""
        agreement = ranks.agreement
        self.num_steps += num_steps
        if agreement is not None and agreement.num_ubatches > 1:
            self.num_split_steps += num_steps
        self.num_tokens += num_steps * ranks.num_asked
        self.num_computed_tokens += num_steps * ranks.num_computed
        for rank in ranks.idle:
            self.dummy_steps[rank] += num_steps

    def count(self, counts: list[int], agreement: Agreement | None) -> None:
        """A step of so many tokens of each rank, 0 for dummies."""
        self.num_steps += 1
        if agreement is not None and agreement.num_ubatches > 1:
            self.num_split_steps += 1
        num_asked, num_computed = num_tokens_in_step(counts, agreement)
        self.num_tokens += num_asked
        self.num_computed_tokens += num_computed
        for rank, num_tokens in enumerate(counts):
            if num_tokens == 0:
                self.dummy_steps[rank] += 1

    def last(self, seconds: list[float], duration_s: float) -> None:
        """All ranks are on a step, or on a stage of one, for so long; each would take `seconds` by itself."""
        all_s, slowest_s = 0.0, 0.0
        for rank_s in seconds:
            all_s += rank_s
            slowest_s = max(slowest_s, rank_s)
        self.lasted(all_s, slowest_s, duration_s)

    def lasted(self, all_s: float, slowest_s: float, duration_s: float) -> None:
        """All ranks are on steps for so long; by themselves they would take `all_s` for the first together, and the slowest one `slowest_s`."""
        self.step_s += duration_s
        if slowest_s:
            self.own_s += duration_s * all_s / slowest_s  # contexts grow little in a leap
