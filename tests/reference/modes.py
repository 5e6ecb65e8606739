"""What an engine does beyond the plain one: speculation, pipeline stages, adapters, KV from elsewhere, admission limits.

The rules are those of vLLM 0.33; each field's meaning and name is vLLM's. The plain engine is `Modes()`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from sim.specs.engine import ResolvedEngine
from sim.specs.kv_transfer import EvictionPolicyName

Role = Literal["kv_producer", "kv_consumer", "kv_both"]


@dataclass(frozen=True, slots=True)
class Speculation:
    """Up to `k` draft tokens a step, by batch size where `by_batch_size` says so (index: requests in the batch).

    `lookahead` slots are allocated ahead of each request's tokens; each scheduled request costs `draft_slots` more of the
    input budget. `drops_last_hit`: the drafter recomputes the last block of a prefix hit. `prefill_lookahead` above 1:
    no chunk ends less than that ahead of the known tokens' end. `hash_lookahead`: tokens behind a block that its hash covers.
    """

    k: int
    lookahead: int = 0
    draft_slots: int = 0
    drops_last_hit: bool = False
    prefill_lookahead: int = 0
    hash_lookahead: int = 0
    by_batch_size: Sequence[int] | None = None

    @property
    def unfinished_tokens(self) -> int:
        """Known tokens at the end whose KV the drafter writes anew, so that it is neither found nor handed over."""
        return max(0, self.prefill_lookahead - 1)

    def k_after(self, num_requests: int) -> int:
        """Drafts for the next step of the requests of a batch of that size."""
        return (
            self.k if self.by_batch_size is None else self.by_batch_size[min(num_requests, len(self.by_batch_size) - 1)]
        )


def whole_step(step_s: float) -> Sequence[float]:
    """One stage, which does it all."""
    return (step_s,)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages in a row: `stages_s` says what of a step each takes, a message to the next one lasts `hop_s`."""

    num_stages: int = 1
    stages_s: Callable[[float], Sequence[float]] = whole_step
    hop_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Offload:
    """KV on the CPU, `cpu_chunks` of `blocks_per_chunk` blocks; loads and stores are a queue each of base + a time a block."""

    cpu_chunks: int
    load_base_s: float
    load_block_s: float
    store_base_s: float
    store_block_s: float
    blocks_per_chunk: int = 1
    prompt_only: bool = True
    eviction_policy: EvictionPolicyName = "lru"


@dataclass(frozen=True, slots=True)
class Transfers:
    """KV from and to elsewhere. What has arrived is reported with the first batch that ends (or starts) no earlier."""

    connector: Literal["nixl", "mock", "offload", "store", "multi"]
    role: Role = "kv_both"
    reports_at_start: bool = False
    recv_token_s: float = 0.0
    recomputes_failed: bool = False
    offload: Offload | None = None

    @property
    def drops_preempted_outputs(self) -> bool:
        return self.role != "kv_consumer" and self.connector not in {"offload", "store"}


@dataclass(frozen=True, slots=True)
class Loras:
    """Adapters in a batch and in host memory, what it takes to bring one into a slot (to copy it, and to read it before), and to make those of a dummy batch."""

    max_loras: int
    max_cpu_loras: int
    copy_s: float = 0.0
    read_s: float = 0.0
    dummy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Swap:
    """A what-if: room in host memory for so many blocks of preempted requests, each copied in so long."""

    num_blocks: int
    block_copy_s: float


@dataclass(frozen=True, slots=True)
class Modes:
    """`num_batches_in_flight` None leaves it to the plain engine; `idle_sleep_s` passes after a call that scheduled nothing."""

    num_batches_in_flight: int | None = None
    speculation: Speculation | None = None
    pipeline: Pipeline = field(default_factory=Pipeline)
    loras: Loras | None = None
    transfers: Transfers | None = None
    idle_sleep_s: float = 0.0
    throttle_interval: int = 0
    local_prefill_interval: int = 1
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    swap: Swap | None = None

    @property
    def are_plain(self) -> bool:
        """Whether the plain engine does all of it."""
        return replace(self, num_batches_in_flight=None) == PLAIN

    @property
    def limits_queue(self) -> bool:
        return self.max_num_queued_reqs is not None or self.max_num_queued_tokens is not None

    def with_limits_of(self, engine: ResolvedEngine) -> "Modes":
        """With the limits of what that server takes in."""
        limits = {name: getattr(engine, name) for name in ("max_num_queued_reqs", "max_num_queued_tokens")}
        return replace(self, **limits)

    @property
    def defers_frees(self) -> bool:
        """Whether blocks that a batch in flight may still write to are kept until it has come back."""
        is_queued = (self.num_batches_in_flight or 1) > 1
        return is_queued and self.transfers is not None and self.transfers.role != "kv_producer"


@dataclass(frozen=True, slots=True)
class Script:
    """What the world does to one request. `accept` and `propose` are cyclic: drafts accepted at each verification, drafts
    offered after each sampling (None: as many as there may be). `recv_s` and `send_s` are transfer times, `remote_tokens`
    what an external store holds of the prompt.
    """

    accept: Sequence[int] = (0,)
    propose: Sequence[int] | None = None
    is_remote: bool = False
    recv_s: float = 0.0
    recv_fails: bool = False
    is_sent_on: bool = False
    send_s: float = 0.0
    remote_tokens: int | None = None
    loads_in_step: bool = False


PLAIN = Modes()
ONE_STAGE = Pipeline()
UNSCRIPTED = Script()
