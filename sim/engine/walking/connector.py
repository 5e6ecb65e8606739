"""KV that comes from elsewhere or goes there: what the scheduler asks and what the worker tells.

Mirrors the interface of vLLM's kv_connector/v1/base.py (0.32), both sides in one. A transfer is told of with the first batch
that ends, or starts, when it is over or later.
"""

from collections.abc import Sequence
from math import inf
from typing import Any

from sim.engine.records import OffloadRecords
from sim.engine.request import Request
from sim.engine.walking.progress import Progress
from sim.engine.walking.slots import KeptState, Slots


class Transfer:
    """KV of one request on its way, in one direction: "recv", "send", "load" or "store".

    Whoever moves it sets `end_s`, at the latest when it is over, and `has_failed`.
    """

    def __init__(self, progress: Progress, kind: str, num_tokens: int, num_blocks: int = 0) -> None:
        self.progress = progress
        self.kind = kind
        self.num_tokens = num_tokens
        self.num_blocks = num_blocks
        self.start_s = inf
        self.end_s = inf
        self.has_failed = False

    @property
    def request(self) -> Request:
        """Whose it is."""
        return self.progress.request


def completion_order(transfer: Transfer) -> tuple[float, str]:
    """What sorts transfers as they ended."""
    return transfer.end_s, transfer.request.request_id


def over_by(transfers: list[Transfer], until_s: float) -> list[Transfer]:
    """Those that are over by then, in order of completion."""
    return sorted((transfer for transfer in transfers if transfer.end_s <= until_s), key=completion_order)


def first_end_s(transfers: Sequence[Transfer]) -> float:
    """When the first of them is over, as far as is known."""
    return min([transfer.end_s for transfer in transfers], default=inf)


class Connector:
    """The scheduler and the worker talk to one of these.

    `consumes`: blocks are written to from elsewhere. `drops_preempted_outputs`: what is in flight of a request as it is
    preempted is sampled again. A load that fails is computed if `recomputes_failed`, or else ends its request. `events` tell a
    log of what begins. `brings_states`: what comes has the state behind it, so that what full attention has here is enough to begin with.
    """

    consumes: bool = True
    brings_states: bool = False
    drops_preempted_outputs: bool = False
    recomputes_failed: bool = False
    reports_at_start: bool = False
    events: list[list[Any]] | None = None

    def log_to(self, events: list[list[Any]]) -> None:
        """What begins is told there."""
        self.events = events

    def attach(self, slots: Slots) -> None:
        """These are the engine's blocks."""
        self.slots = slots

    def added(self, progress: Progress) -> None:
        """A request has come in."""

    @property
    def has_pending(self) -> bool:
        """Whether anything is still to be told of."""
        raise NotImplementedError

    @property
    def next_end_s(self) -> float:
        """When the first of the transfers under way is over, `inf` as long as none knows; 0 if more begin with the next batch."""
        raise NotImplementedError

    def find(self, progress: Progress, num_hit_tokens: int) -> int:
        """Tokens beyond the local hit that can be had from elsewhere; -1 to be asked again later."""
        raise NotImplementedError

    def may_find(self, progress: Progress) -> bool:  # noqa: ARG002 - for those that have to be asked
        """Whether `find` begins nothing."""
        return True

    def loads_in_step(self, progress: Progress) -> bool:
        """Whether those tokens come within the step itself."""
        raise NotImplementedError

    def load(self, progress: Progress, num_hit_tokens: int, num_tokens: int) -> None:
        """Blocks are there: the load begins with the batch of this pass."""
        raise NotImplementedError

    def hears_of_other_load(self, progress: Progress, num_tokens: int) -> None:
        """Another connector loads for a request, which will have so many tokens."""

    def num_blocks_behind(self, request: Request, num_hit_blocks: int) -> int:  # noqa: ARG002 - for those that keep blocks here
        """Blocks of a request that has not come in which lie behind those in the GPU's cache, in host memory."""
        return 0

    def preempted(self, progress: Progress) -> None:
        """A request is about to lose its blocks."""

    @property
    def lets_decode(self) -> bool:
        """Whether calls that only decode, none of whose requests is to be visited, change nothing here before `next_end_s`."""
        return self.next_end_s > 0.0

    def has_stored(self, progress: Progress) -> bool:  # noqa: ARG002 - for those that store what is computed
        """Whether `computes` will do nothing more for a request."""
        return True

    def computes(self, progress: Progress, num_tokens: int) -> None:
        """With this pass a request will have computed so many tokens; told of every row at the end of the pass."""

    def close_pass(self, kept_states: Sequence[KeptState]) -> None:
        """All rows have been told, and these states have been made findable."""

    def begin(self, now_s: float, start_s: float) -> float:
        """The worker begins a batch, maybe an empty one, and all that has been asked for; when the batch really begins."""
        raise NotImplementedError

    def ending(self, progress: Progress) -> None:
        """A request ends, or is dropped, and is about to give back what windows have passed."""

    def finished(self, progress: Progress, now_s: float) -> bool:
        """A request has ended; whether it holds its blocks until they have been sent."""
        raise NotImplementedError

    def aborted(self, progress: Progress) -> None:
        """A request is dropped."""

    def lose_all(self) -> list[Transfer]:
        """The device is gone: what was under way for requests that hold blocks for it."""
        return []

    def records(self) -> OffloadRecords | None:
        """What the CPU's memory was used for, where it is."""
        return None

    def stored_records(self) -> OffloadRecords | None:
        """What a store was used for, where there is one."""
        return None

    def reported(self, until_s: float) -> list[Transfer]:
        """What is over by then and has not been told of, in order of completion."""
        raise NotImplementedError
