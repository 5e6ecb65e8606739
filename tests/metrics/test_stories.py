"""The lives of single requests, against the log of every step."""

from collections import Counter

import pytest

from sim.metrics.stories import slowest_to_begin, slowest_to_end
from tests import results


def test_a_story_has_the_chunks_that_were_scheduled() -> None:
    """Of every request that was not preempted before its first token; few are not told."""
    run = results.crowded()
    prompts = dict(zip(run.trace.request_id, run.trace.prompt_tokens.tolist(), strict=True))
    chunks: Counter[str] = Counter()
    for step in results.STEPS:
        chunks.update(name for name, _, computed, _ in step["sched"] if computed < prompts[name])
    told = [story for story in slowest_to_begin(run.trace, run.run, 200) if story.num_chunks is not None]
    assert len(told) > 190
    alone = [story for story in told if not story.num_preemptions]
    assert {story.request_id: story.num_chunks for story in alone} == {
        story.request_id: chunks[story.request_id] for story in alone
    }
    assert max(chunks.values()) > 2


def test_the_slowest_come_first_and_their_phases_add_up() -> None:
    """As in requests.csv; the story of one that was preempted says so."""
    run = results.crowded()
    by_end = run.requests.sort_values("e2el_ms", ascending=False, kind="stable")[:5]
    found = slowest_to_end(run.trace, run.run, 5)
    assert [story.request_id for story in found] == by_end["request_id"].tolist()
    assert [1000 * story.e2el_s for story in found] == pytest.approx(by_end["e2el_ms"].tolist())
    (preempted, *_) = [story for story in slowest_to_end(run.trace, run.run, 200) if story.num_preemptions == 1]
    assert preempted.text.endswith("each, preempted once.")
