"""What data-parallel ranks in lock step cost each other: counted while they run."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sim.engine.leaps import Leap, end_s
from sim.engine.rank_steps import Lane
from sim.steptime.protocol import Agreement, StepShape


@dataclass
class RankRecords:
    """Of all ranks: `num_steps` that they took together, in so many waves, and `dummy_steps` of each.

    `step_s` is how long the steps lasted, `own_s` how long ranks would have taken for theirs by themselves, over all ranks.
    Of `num_computed_tokens`, padding included, requests asked for `num_tokens`.
    """

    num_ranks: int
    num_waves: int = 0
    num_steps: int = 0
    step_s: float = 0.0
    own_s: float = 0.0
    num_tokens: int = 0
    num_computed_tokens: int = 0
    dummy_steps: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.dummy_steps = [0] * self.num_ranks

    def step(
        self, shapes: Sequence[StepShape | None], agreement: Agreement | None, own_s: Sequence[float], step_s: float
    ) -> None:
        """A step by itself; None for a dummy."""
        self._count(shapes, agreement, 1)
        self.step_s += step_s
        self.own_s += sum(own_s)

    def leap(
        self,
        shapes: Sequence[StepShape | None],
        agreement: Agreement | None,
        lanes: Sequence[Lane],
        leap: Leap,
        num_steps: int,
    ) -> None:
        """The first steps of a leap; a rank's own time is nearly a straight line."""
        self._count(shapes, agreement, num_steps)
        self.step_s += end_s(leap, num_steps) - leap.start_s
        self.own_s += sum((lane.at(0) + lane.at(num_steps - 1)) / 2 * num_steps for lane in lanes)

    def _count(self, shapes: Sequence[StepShape | None], agreement: Agreement | None, num_steps: int) -> None:
        self.num_steps += num_steps
        for rank, shape in enumerate(shapes):
            num_tokens = shape.num_tokens if shape else 0
            self.num_tokens += num_steps * num_tokens
            self.num_computed_tokens += num_steps * max(num_tokens, 1, agreement.num_tokens if agreement else 0)
            if shape is None:
                self.dummy_steps[rank] += num_steps
