"""What ranks in lock step agree on before a step."""

import pytest

from sim.engine.rank_steps import DualBatches, RankSteps, dummy_batch
from sim.steptime.graphs import GraphDispatch
from sim.steptime.linear import LinearStepTime
from sim.steptime.protocol import Agreement, StepShape

DISPATCH = GraphDispatch("FULL_AND_PIECEWISE", (1, 2, 4, 8, 16, 32, 64), max_num_seqs=64)
NO_TIME = LinearStepTime(0.0, 0.0, 0.0)


def decodes(number: int) -> StepShape:
    return StepShape(number, 0, (), number)


def prompt(tokens: int, beside: int = 0) -> StepShape:
    return StepShape(beside, 0, ((tokens, 0),), 1 + beside)


@pytest.mark.parametrize(
    ("ranks", "agreed"),
    [
        ([decodes(20), decodes(24)], Agreement("full", 32, 64, 2)),
        ([decodes(19), decodes(32)], Agreement("none", 32, 64)),  # too few, and the full graph of 32 is of two halves
        ([decodes(19), decodes(9)], Agreement("none", 32, 64)),
        ([decodes(16), decodes(9)], Agreement("full", 16, 32)),  # nor were more than 19 tokens computed
        ([decodes(33), decodes(32)], Agreement("none", 64, 128)),  # the second half of 64 would be empty on one rank
        ([prompt(60), prompt(50)], Agreement("none", 64, 128, 2)),  # no graph holds a split step with prompts
        ([prompt(60), prompt(49)], Agreement("piecewise", 64, 128)),
        ([prompt(2000), prompt(1500)], Agreement("none", 2000, 4000, 2)),  # padded, as split steps are
        ([prompt(2000), prompt(40)], Agreement("none", 0, 2040)),
        ([prompt(60), decodes(40)], Agreement("none", 64, 128, 2)),  # each votes by what it does itself
        ([prompt(40, beside=9), decodes(40)], Agreement("piecewise", 64, 128)),
        ([decodes(60), dummy_batch()], Agreement("none", 64, 128)),
    ],
)  # fmt: skip
def test_steps_are_split_where_all_have_tokens_enough(ranks: list[StepShape], agreed: Agreement) -> None:
    """20 of decodes, 50 where there are prompts."""
    steps = RankSteps(NO_TIME, DISPATCH, dummy_batch(), DualBatches(20, 50))
    assert steps.agreement(ranks) == agreed


def test_without_dual_batches_no_step_is_split() -> None:
    steps = RankSteps(NO_TIME, DISPATCH, dummy_batch())
    assert steps.agreement([decodes(60), decodes(60)]) == Agreement("full", 64, 128)
    assert steps.agreement([prompt(2000), prompt(1500)]) == Agreement("none", 0, 3500)


def test_ranks_agree_anew_on_each_step() -> None:
    """Of as many tokens too, where one has a prompt, or more than a graph holds."""
    steps = RankSteps(NO_TIME, DISPATCH, dummy_batch())
    full, piecewise, none = Agreement("full", 64, 128), Agreement("piecewise", 64, 128), Agreement("none", 0, 64 + 2000)
    for _ in range(2):
        assert steps.agreement([decodes(60), decodes(60)]) == full
        assert steps.agreement([decodes(60), prompt(60)]) == piecewise
        assert steps.agreement([decodes(64), prompt(2000)]) == none
        assert steps.agreement([prompt(64), decodes(1)]) == piecewise
