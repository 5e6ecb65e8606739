"""What can never run is turned away with its reason, and what just can is not."""

import numpy as np
import pytest

from sim.engine.request_source import RequestSource
from sim.workload.trace import Trace
from tests.makers import make_config


@pytest.mark.parametrize(
    ("prompt", "output", "reason"),
    [
        (0, 5, "the prompt is empty"),
        (5, 0, "no output was asked for"),
        (20, 5, "a prompt of 20 tokens leaves no room for output within max_model_len 20"),
        (10, 4, "13 tokens of prompt and output need more than the 3 KV blocks there are"),
        (10, 3, None),
        (1, 1, None),
    ],
)
def test_reasons(prompt: int, output: int, reason: str | None) -> None:
    """Three blocks of 4 tokens and a context of 20; the last output needs no KV."""
    trace = Trace(("A",), np.zeros(1), np.array([prompt]), np.array([output]))
    source = RequestSource(trace, make_config(num_gpu_blocks=4, max_model_len=20))
    assert source.rejected.get(0) == reason
    assert len(list(source)) == (reason is None)
