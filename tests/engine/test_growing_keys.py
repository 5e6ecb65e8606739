"""Keys that are given one prompt after the other, against those that are given when all prompts are known."""

import numpy as np
from hypothesis import given

from sim.engine.content import shared_block_keys
from sim.engine.growing_keys import GrowingKeys, keys_of
from sim.engine.request import Request
from sim.workload.trace import Trace
from tests.properties import engine_examples as examples
from tests.workloads import traces


def asked(trace: Trace, keys: GrowingKeys) -> list[Request]:
    requests = [Request(row, f"r{row}", 0.0, int(tokens), 1) for row, tokens in enumerate(trace.prompt_tokens)]
    for request, path in zip(requests, trace.segments or (), strict=True):
        keys.give(request, path)
    return requests


def blocks(request: Request) -> list[int]:
    return [request.keyed.key(block) for block in range(request.keyed.count)] if request.keyed else []


@examples(150)
@given(trace=traces())
def test_two_prompts_share_as_many_keys_as_blocks(trace: Trace) -> None:
    """In blocks of three tokens: as many leading ones as when keys are given to all prompts at once, which leaves out answers."""
    requests = asked(trace, GrowingKeys(3, 1))
    spans, _ = shared_block_keys(trace, np.zeros(len(trace), dtype=np.int64), 3)
    known = [[span.key + at for span in of for at in range(span.end - span.block)] for of in spans[0 : len(trace)]]
    for one in range(len(trace)):
        for other in range(one):
            shared = [
                len(common(found[one], found[other])) for found in (known, [blocks(request) for request in requests])
            ]
            assert shared[0] == shared[1]


def common(one: list[int], other: list[int]) -> list[int]:
    """What both begin with."""
    count = next((at for at, keys in enumerate(zip(one, other, strict=False)) if len(set(keys)) > 1), None)
    return one[: min(len(one), len(other)) if count is None else count]


def test_what_nobody_can_find_is_forgotten() -> None:
    """Of two prompts with a common beginning, one is still looked for, and the other's request has not begun; a third is gone."""
    keys = GrowingKeys(4, 1)
    requests = [Request(row, f"r{row}", 0.0, 8, 1) for row in range(3)]
    for request, own in zip(requests, (1, 2, 3), strict=True):
        keys.give(request, ((0, 4), (own, 4)) if own < 3 else ((own, 8),))
    assert len(keys) == 3
    keys.forget_all_but([])
    assert len(keys) == 3
    requests[0].first_scheduled_s = requests[2].first_scheduled_s = 0.0
    keys.forget_all_but(keys_of(requests[:1]))
    assert len(keys) == 2
    before = blocks(requests[0])
    keys.give(requests[0], ((0, 4), (1, 4)))
    assert blocks(requests[0]) == before
    requests[1].first_scheduled_s = 0.0
    keys.forget_all_but([])
    assert len(keys) == 0
