"""Who prefills a request for the replica that will answer it, and what becomes of it when that is done.

As llm-d does it (llm-d/llm-d-router @ebab6879): the decode replica is chosen first; where much of the prompt is missing there, a
prefill replica is chosen, computes it and generates one token, which is thrown away; then the decode replica gets the request.
To llm-d a replica is an address. Behind that of a whole server its balancer chooses the rank when the prompt, or the request, comes to it
(v1/engine/core_client.py, `get_core_engine_for_request`); what the decider hears of is the most that any of its ranks holds.
Where drafters write the end of a prompt anew, that is left to the decode replica (nixl/base_scheduler.py of vLLM 0.32).
Deliberate difference: what goes between gateway and replicas takes no time.
"""

from collections.abc import Callable, Sequence
from typing import Any

import simpy

from sim.cluster.clock import ASK, call_at
from sim.cluster.deciders import Decider, decider
from sim.cluster.exchange import Exchange
from sim.cluster.fleet_plan import FleetPlan, Pool, RouterLike
from sim.cluster.handovers import Handover, Handovers, ReplicaT
from sim.cluster.routers.router import Router
from sim.engine.kv_cache_manager import longest_that_fits
from sim.engine.request import Request
from sim.engine.request_source import RequestSource


class PrefillDesk:
    """`router` chooses among those who could prefill; requests whose prompts are computed wait here till the end of the instant."""

    def __init__(
        self,
        env: simpy.Environment,
        router: Router,
        decider: Decider,
        source: RequestSource,
        handovers: Handovers,
        pools: Sequence[Pool],
    ) -> None:
        self.router = router
        self._env = env
        self._decider = decider
        self._source = source
        self._handovers = handovers
        self._prefilled: list[Handover[Any]] = []
        self._roles = [pool.role for pool in pools]
        self._num_left = [max(pool.modes.num_tokens_not_kept, pool.config.num_tokens_left_to_decode) for pool in pools]
        self._block_sizes = [pool.config.block_size for pool in pools]
        self._longest_prompts = [
            min(pool.config.max_model_len - 1, longest_that_fits(pool.config, pool.num_slots_ahead)) for pool in pools
        ]

    def is_prefill(self, pool: int) -> bool:
        """Whether replicas of that pool compute prompts for others."""
        return self._roles[pool] == "prefill"

    def begin(self, request: Request, receiver: ReplicaT, senders: Sequence[ReplicaT]) -> Handover[ReplicaT] | None:
        """The handover of a request that is prefilled elsewhere, whose `prefill` is to be sent to its `sender`.

        None where the receiver is to compute the prompt itself, also because nobody else can.
        """
        able = self._able(request, receiver, senders)
        if not able:
            return None
        num_left = self._num_left[receiver.pool]
        prefill = Request(
            request.index,
            request.request_id,
            request.arrival_s,
            request.num_prompt_tokens - (num_left if request.num_prompt_tokens > num_left else 0),
            1,
            request.priority,
            request.lora,
        )
        number = self.router.choose(prefill, able).number
        sender = next(replica for replica in able if replica.number == number)
        self._source.fit(prefill, sender.pool)
        handover = Handover(prefill, request, sender, receiver)
        self._handovers.add(handover)
        return handover

    def _able(self, request: Request, receiver: ReplicaT, senders: Sequence[ReplicaT]) -> list[ReplicaT]:
        """Who could prefill a request for that replica."""
        if self._roles[receiver.pool] != "decode":
            return []
        num_tokens = request.num_prompt_tokens
        num_cached_tokens = receiver.num_cached_blocks(request) * self._block_sizes[receiver.pool]
        if not self._decider.prefills_elsewhere(num_tokens, num_cached_tokens):
            return []
        return [replica for replica in senders if num_tokens <= self._longest_prompts[replica.pool]]

    def prefilled(self, number: int, prefills: Sequence[Request]) -> list[Handover[Any]]:
        """Prompts have been computed at a replica: their decode replicas get the requests, those of one instant in trace order."""
        if not self._prefilled:
            call_at(self._env, self._env.now, ASK, self._hand_over)
        if self.router.listens:
            for prefill in prefills:
                self.router.answered(prefill, number)
        found = [handover for handover in map(self._handovers.of, prefills) if handover is not None]
        self._prefilled += found
        return found

    def _hand_over(self) -> None:
        prefilled, self._prefilled = sorted(self._prefilled, key=lambda one: one.prefill.index), []
        for handover in prefilled:
            if not handover.is_dropped:
                handover.is_delivered = True
                handover.request.first_scheduled_s = handover.prefill.first_scheduled_s
                handover.receiver.submit(handover.request)


def open_desk(
    env: simpy.Environment,
    plan: FleetPlan,
    pool_of: Sequence[int],
    router_of: Callable[[RouterLike], Router],
    source: RequestSource,
    idle_sleep_s: float,
) -> tuple[Exchange, PrefillDesk]:
    """What replicas of these pools hand KV over by, and its desk; `router_of` makes a router among those that prefill."""
    assert plan.disaggregation is not None, "a fleet that hands KV over"
    pools = [plan.pools[pool] for pool in pool_of]
    exchange = Exchange(env, plan.disaggregation, pools, source, idle_sleep_s, sharing=plan.sharing)
    router = router_of(plan.disaggregation.router or plan.router)
    asks = decider(plan.disaggregation.decider)
    return exchange, PrefillDesk(env, router, asks, source, exchange.handovers, plan.pools)
