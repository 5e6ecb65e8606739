"""Who gets a prompt that few replicas hold anything of: the fewest tokens, among those that pass the affinity filter if any do."""

from collections.abc import Mapping

import numpy as np
import pytest

from sim.cluster.routers.llm_d_few import fewest_tokens

HELD = {0: 60.0, 1: 20.0}


@pytest.mark.parametrize(
    ("cached", "sticky", "best"),
    [
        (HELD, [], [0, 2]),  # 100 + 20 and 40 + 80 tokens; 100 + 60 on the other
        (HELD, [1], [1]),
        (HELD, [0, 1], [0]),
        ({1: 60.0}, [], [1, 2]),
        ({}, [], [2]),
    ],
)
def test_the_fewest_tokens(cached: Mapping[int, float], sticky: list[int], best: list[int]) -> None:
    """A prompt of 80 tokens before three replicas: what one holds counts also where it is too little to be sticky."""
    assert fewest_tokens(80, cached, np.array([100.0, 100.0, 40.0]), sticky) == best
