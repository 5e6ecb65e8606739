"""Which blocks requests with drafts find, by version of vLLM: each number follows from what hashes cover and when blocks are kept."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sim.engine.content import output_id
from sim.specs.releases import release_for
from sim.specs.speculating import Ways, ways_of
from sim.specs.speculation import Speculation
from sim.workload.trace import Segment, Trace
from tests.configs import scheduler_config
from tests.conformance.case import Case, RecordedStepTime
from tests.conformance.engines import Run, run_reference, run_walking
from tests.engine.test_modes_agree import derived, recorded
from tests.reference import modes as naive

BLOCK_SIZE = 16
ENGINES = pytest.mark.parametrize("run", [run_reference, run_walking])
APART_S = 1000.0


def cached(
    run: Callable[[Case], Run],
    speculation: Speculation,
    prompts: list[tuple[Segment, ...]],
    output_tokens: int,
    version: str,
) -> list[Any]:
    """The tokens that each of these finds, sent one after the other; all drafts are accepted."""
    lengths = np.array([sum(tokens for _, tokens in prompt) for prompt in prompts])
    trace = Trace(
        request_id=tuple(f"r{row}" for row in range(len(prompts))),
        arrival_s=np.array([APART_S * row for row in range(len(prompts))]),
        prompt_tokens=lengths,
        output_tokens=np.full(len(prompts), output_tokens),
        segments=tuple(prompts),
    )
    config = scheduler_config(
        async_scheduling=False, block_size=BLOCK_SIZE, enable_prefix_caching=True, rules=release_for(version).rules
    )
    modes = naive.Modes(num_batches_in_flight=1, speculation=derived(speculation, has_connector=False))
    scripts = [naive.Script(accept=(speculation.num_speculative_tokens,))] * len(prompts)
    case = Case(trace, config, RecordedStepTime(1, 0, 0), None, recorded(speculation), modes, scripts)
    found = run(case).requests
    return [found[name]["cached"] for name in trace.request_id]


@ENGINES
@pytest.mark.parametrize(
    ("ways", "version", "hits"),
    [
        (ways_of("0.32.0"), "0.32.0", [0, 16, 0, 0]),
        (ways_of("0.33.0"), "0.33.0", [0, 32, 16, 0]),
        (ways_of("0.33.0", hashes_look_ahead=False), "0.33.0", [0, 16, 0, 0]),
        (ways_of("0.33.0", trusts_last_block=True), "0.33.0", [0, 32, 16, 16]),
    ],
)
def test_hashes_cover_the_token_behind_a_block(
    run: Callable[[Case], Run], ways: Ways, version: str, hits: list[int]
) -> None:
    """33 tokens again: two blocks with a token behind each. Of 32 the second has none. What differs behind a block does not find it.

    Before 0.33 the last block found is computed again instead, whatever follows it.
    """
    prompts = [((7, 33),), ((7, 33),), ((7, 32),), ((7, 16), (8, 17))]
    assert cached(run, Speculation(2, "eagle3", **ways), prompts, 1, version) == hits


@ENGINES
@pytest.mark.parametrize(("version", "hit"), [("0.32.0", 0), ("0.33.0", 16)])
def test_verified_tokens_can_be_found_without_being_scheduled_again(
    run: Callable[[Case], Run], version: str, hit: int
) -> None:
    """14 tokens and a first one are 15; three drafts are accepted with the last step, which fills the block of 16."""
    prompts = [((7, 14),), ((7, 14), (output_id(0), 5), (8, 9))]
    found = cached(run, Speculation(3, "ngram", **ways_of(version)), prompts, 5, version)
    assert found == [0, hit]


@ENGINES
@pytest.mark.parametrize(("version", "hit"), [("0.32.0", 16), ("0.33.0", 32)])
def test_dflash_trusts_all_that_is_found_since_033(run: Callable[[Case], Run], version: str, hit: int) -> None:
    """Its KV depends on no token behind: 33 tokens again are two blocks, and before 0.33 one."""
    assert cached(run, Speculation(2, "dflash", **ways_of(version)), [((7, 33),)] * 2, 1, version) == [0, hit]
