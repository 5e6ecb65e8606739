"""What an engine does beyond the plain one: speculation, pipeline stages, adapters, KV from elsewhere, throttled prefills."""

from dataclasses import dataclass, replace
from typing import Protocol

from sim.engine.config import SchedulerConfig
from sim.engine.request import Request
from sim.engine.walking.remote import Peer
from sim.engine.walking.stored import Store
from sim.memory.swap_space import SwapSpace
from sim.specs.engine import PrefixCacheEviction
from sim.specs.kv_transfer import KVTransferConfig, OffloadConfig
from sim.specs.lora import LoraSlots
from sim.specs.speculation import Speculation

POLLING_S = 0.001
"""How long vLLM's engine sleeps after a call that scheduled nothing while work remains (v1/engine/core.py)."""


class Acceptance(Protocol):
    """How a request's drafts fare, known beforehand; each answer is repeated from its beginning when it is used up."""

    def accepted(self, request: Request) -> bytes:
        """Drafts accepted at each of its verifications, one byte each; more than there are in the step count as those."""
        ...

    def proposed(self, request: Request, /) -> bytes:
        """Drafts proposed after each of its samples; nothing where there are always as many as allowed."""
        ...


@dataclass(frozen=True)
class Modes:
    """The plain engine is `Modes()`.

    `num_stages` above 1 are timed by a StagedStepTime. `lora` is where there are adapters.
    `peer` is the other side of `kv_transfer`, which goes with a `store` and with `offload` to the CPU where prefixes are cached, as these two do with each other.
    `idle_sleep_s` passes after a call that scheduled nothing: POLLING_S in vLLM, 0 to wait for whatever happens next, which
    KV transfers forbid. `throttle_interval` above 0 lets prefills in with every so many-th call alone, `local_prefill_interval` above 1
    so many steps after the last of them. The last five are what-ifs; `swap_space` and `evicts_by` go with no KV from elsewhere and with no windows, `swap_space` with one stage.
    """

    speculation: Speculation | None = None
    acceptance: Acceptance | None = None
    num_stages: int = 1
    lora: LoraSlots | None = None
    kv_transfer: KVTransferConfig | None = None
    peer: Peer | None = None
    offload: OffloadConfig | None = None
    store: Store | None = None
    idle_sleep_s: float = 0.0
    throttle_interval: int = 0
    local_prefill_interval: int = 1
    batches_statically: bool = False
    allocates_contiguously: bool = False
    swap_space: SwapSpace | None = None
    evicts_by: PrefixCacheEviction = "lru"
    shares_fairly: bool = False

    def num_slots_ahead(self, config: SchedulerConfig) -> int:
        """Slots that a request may ask for beyond its tokens, as far as max_model_len goes: for drafts and what is allocated ahead of them."""
        if self.allocates_contiguously:
            return config.max_model_len
        drafts = self.speculation
        return drafts.num_speculative_tokens + drafts.num_lookahead_tokens if drafts else 0

    @property
    def drafting(self) -> Speculation | None:
        """The speculation; beside a KV connector vLLM hashes blocks as ever."""
        drafts = self.speculation
        has_connector = self.kv_transfer is not None or self.offload is not None or self.store is not None
        return replace(drafts, hashes_look_ahead=False) if drafts and has_connector else drafts

    @property
    def num_hash_lookahead_tokens(self) -> int:
        """Tokens behind a block that its hash covers too."""
        return self.drafting.num_hash_lookahead_tokens if self.drafting else 0

    @property
    def num_tokens_not_kept(self) -> int:
        """Known tokens at the end whose KV a drafter writes anew: not found by others, nor handed over."""
        return self.speculation.num_tokens_not_kept if self.speculation else 0


PLAIN = Modes()
