"""Who waits, who runs, who is loaded for; nothing here decides anything.

`holding` are requests that wait and hold blocks: what is loaded for them is on its way, or has come. `to_prefill` are those for whom
something was loaded and who have not run since: blocks for the rest of their prompts are spoken for.
"""

from sim.engine.config import SchedulerConfig
from sim.engine.request import Request, RequestStatus
from sim.engine.scheduling_policy import scheduling_policy
from sim.engine.walking.adapters import AdapterCache
from sim.engine.walking.batch import Batch, Row
from sim.engine.walking.connector import Connector
from sim.engine.walking.contiguous_slots import ContiguousSlots
from sim.engine.walking.modes import Modes
from sim.engine.walking.progress import Progress, admission_order
from sim.engine.walking.ranked_eviction import RankedSlots
from sim.engine.walking.rotation import Rotation, rotates
from sim.engine.walking.slots import Slots
from sim.engine.walking.stateful_slots import StatefulSlots
from sim.specs.engine import batches_in_flight


class State:
    """The queues, the running requests in order of admission, and their blocks. `num_calls` of the scheduler have been made.

    With a `rotation` decodes are counted. `verified` counts the verifications that accepted 0, 1, ... drafts.
    """

    def __init__(
        self, config: SchedulerConfig, modes: Modes, num_keys: int, connector: Connector | None, *, counts: bool = False
    ) -> None:
        self.config = config
        self._watermark_blocks = config.watermark_blocks
        self.modes = modes
        self.rules = config.engine.rules
        self.is_async = config.engine.async_scheduling
        self.is_fcfs = config.engine.scheduling_policy == "fcfs"
        self.policy = scheduling_policy(config.engine.scheduling_policy, config.engine.rules)
        self.slots = _slots(config, modes, num_keys)
        self.connector = connector
        self.adapters = AdapterCache(modes.lora) if modes.lora else None
        self.defers_frees = (
            connector is not None
            and connector.consumes
            and batches_in_flight(modes.num_stages, is_async=self.is_async, rules=self.rules) > 1
        )
        self.drops_preempted_outputs = connector is not None and connector.drops_preempted_outputs
        self.running: list[Progress] = []
        self.waiting = self.policy.make_queue()
        self.holding = self.policy.make_queue()
        self.loading: list[Progress] = []
        self.to_prefill: list[Progress] = []
        self.progress: dict[Request, Progress] = {}
        self.rotation: Rotation | None = None
        if counts and rotates(config, modes):
            self.rotation = Rotation(config, modes.num_stages, self.progress, connector, self.slots.kv)
        self.in_flight: list[Batch] = []
        self.spare_rows: list[Row] = []
        self.spare_batches: list[Batch] = []
        self.num_calls = 0
        self.num_admitted = 0
        self.has_told_finished = True
        self.verified = [0] * (1 + modes.speculation.num_speculative_tokens if modes.speculation else 0)
        self.prefix_cache_queries = 0
        self.prefix_cache_hits = 0

    @property
    def has_requests(self) -> bool:
        return bool(self.running) or len(self.waiting) > 0 or len(self.holding) > 0

    @property
    def has_work(self) -> bool:
        """Whether to call the scheduler: also to tell the worker who has finished, and to hear of transfers."""
        if self.has_requests or not self.has_told_finished:
            return True
        return self.connector is not None and self.connector.has_pending

    @property
    def num_running(self) -> int:
        return len(self.running)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self.holding)

    @property
    def num_free_blocks(self) -> int:
        return self.slots.pool.num_free

    @property
    def longest_chunk(self) -> int:
        """The most tokens that one request may get in a pass now."""
        return self.config.longest_chunk(self.num_running + self.num_waiting)

    @property
    def watermark(self) -> int:
        """Blocks that stay free for those who run."""
        return self._watermark_blocks if self.running else 0

    def requests_in(self, batch: Batch) -> list[Progress]:
        """The requests of a batch that was just scheduled, in order of admission."""
        requests = [row.progress for row in batch.rows]
        if self.rotation is not None and batch.num_counted:
            requests += self.rotation.counted(batch.call, self.running)
            requests.sort(key=admission_order)
        return requests

    @property
    def next_decodes(self) -> list[Progress]:
        """The counted ones of the next call."""
        return self.rotation.counted(self.num_calls + 1, self.running) if self.rotation is not None else []

    def start(self, progress: Progress, num_hit_tokens: int, num_external: int) -> None:
        """A waiting request has its blocks: it runs from now on."""
        request = progress.request
        progress.is_running = True
        progress.had_to_wait = False
        if progress in self.to_prefill:
            self.to_prefill.remove(progress)
        progress.num_computed += num_hit_tokens + num_external
        self.running.append(progress)
        if self.rotation is not None:
            self.rotation.walked.append(progress)
        request.status = RequestStatus.PREFILLING
        request.serial = self.num_admitted
        self.num_admitted += 1
        if request.num_preemptions == 0:
            request.num_cached_tokens = progress.num_computed
            self.prefix_cache_queries += progress.num_tokens
            self.prefix_cache_hits += num_hit_tokens

    def settle(self) -> None:
        """Count nobody: whoever runs can be looked at."""
        if self.rotation is not None:
            self.rotation.settle(self.running, self.in_flight)

    def stop_running(self, progress: Progress) -> None:
        """It leaves the running requests."""
        self.running.remove(progress)
        if self.rotation is not None:
            self.rotation.leave(progress)
        progress.is_running = False

    def preempt(self, progress: Progress) -> None:
        """Recompute preemption: what was computed is lost, what was generated is kept; outputs on their way still come, or are dropped."""
        self.leave_running(progress)
        progress.request.status = RequestStatus.PREEMPTED
        progress.attempt += 1
        progress.num_computed = 0
        progress.num_stale = progress.num_in_flight
        if self.drops_preempted_outputs:
            progress.num_stale, progress.sampled_number = 0, progress.last_batch
        progress.num_placeholders = 0
        self.waiting.put_back(progress.request)

    def leave_running(self, progress: Progress) -> None:
        """A running request has to make room: its blocks are free, and its drafts forgotten."""
        self.stop_running(progress)
        self.slots.free_preempted(progress)
        progress.is_prefilling = False
        request = progress.request
        request.num_preemptions += 1
        request.num_sampled_tokens = progress.num_tokens - progress.num_prompt
        progress.num_drafts = 0


def _slots(config: SchedulerConfig, modes: Modes, num_keys: int) -> Slots:
    if modes.allocates_contiguously:
        return ContiguousSlots(config, modes.drafting, num_keys)
    if modes.evicts_by != "lru":
        return RankedSlots(config, modes.drafting, modes.evicts_by)
    if config.keeps_states:
        return StatefulSlots(config, modes.drafting, num_keys)
    return Slots(config, modes.drafting, num_keys)
