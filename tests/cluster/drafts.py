"""Replicas that speculate, whatever is accepted."""

from typing import NamedTuple

from hypothesis import strategies as st

from sim.engine.config import SchedulerConfig
from sim.engine.request import Request
from sim.engine.walking.modes import PLAIN, Modes
from sim.specs.speculation import Speculation
from sim.workload.trace import Trace
from tests.engine.test_modes_agree import derived, speculations
from tests.reference import modes as naive

LEAST_SPARE_BLOCKS = 12
"""Of one token each: a load leaves room for four drafts, what is allocated ahead of them and two tokens more."""


class Drafts(NamedTuple):
    """How drafts are made, and how many each request's verifications accept, by row; this one accepts them."""

    speculation: Speculation
    counts: tuple[tuple[int, ...], ...]

    def accepted(self, request: Request) -> bytes:
        return bytes(self.counts[request.index])

    def proposed(self, _request: Request) -> bytes:
        return b""

    def starts_with(self, config: SchedulerConfig) -> bool:
        """Whether vLLM does: a block holds what several MTP modules write anew."""
        return not config.engine.enable_prefix_caching or config.block_size >= self.speculation.num_prefill_lookahead


@st.composite
def drafts(draw: st.DrawFn, trace: Trace) -> Drafts:
    """Such as go with async scheduling and without."""
    some = st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple)
    counts = draw(st.lists(some, min_size=len(trace), max_size=len(trace)))
    return Drafts(draw(speculations(is_async=True)), tuple(counts))


def modes_of(given: Drafts | None) -> Modes:
    """What they ask of a replica."""
    return Modes(speculation=given.speculation, acceptance=given) if given else PLAIN


def naive_speculation(given: Drafts | None) -> naive.Speculation | None:
    """The same of a naive one that hands KV on."""
    return derived(given.speculation, has_connector=True) if given else None


def naive_scripts(given: Drafts | None, trace: Trace) -> list[naive.Script]:
    """What becomes of each request's drafts."""
    return [naive.Script(accept=counts) for counts in given.counts] if given else [naive.UNSCRIPTED] * len(trace)
