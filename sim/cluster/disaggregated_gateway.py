"""A gateway that sends requests over two replicas: prefill at one, decode at another.

As llm-d does it (llm-d/llm-d-router @ebab6879): the decode replica is chosen first; where much of the prompt is missing there, a
prefill replica is chosen, computes it and generates one token, which is thrown away; then the decode replica gets the request.
Deliberate difference: what goes between gateway and replicas takes no time.
"""

from collections.abc import Sequence

import simpy

from sim.cluster.clock import ASK, At
from sim.cluster.deciders import Decider
from sim.cluster.fleet_plan import Pool
from sim.cluster.gateway import Gateway
from sim.cluster.handovers import Handover, Handovers
from sim.cluster.replica import Replica
from sim.cluster.routers.router import Router
from sim.engine.kv_cache_manager import longest_that_fits
from sim.engine.request import Request
from sim.engine.request_source import RequestSource


class DisaggregatedGateway(Gateway):
    """`replicas` answer requests; those of role decode leave prompts to `prefill_replicas`, where the decider says so."""

    def __init__(
        self,
        env: simpy.Environment,
        router: Router,
        source: RequestSource,
        *,
        prefill_router: Router,
        decider: Decider,
        handovers: Handovers,
        pools: Sequence[Pool],
    ) -> None:
        super().__init__(env, router, unable=source.unable, fit=source.fit if source.other_keys else None)
        self.prefill_router = prefill_router
        self.prefill_replicas: Sequence[Replica] = ()
        self._source = source
        self._decider = decider
        self._handovers = handovers
        self._prefilled: list[Request] = []
        self._roles = [pool.role for pool in pools]
        self._block_sizes = [pool.config.block_size for pool in pools]
        self._longest_prompts = [min(p.config.max_model_len - 1, longest_that_fits(p.config)) for p in pools]

    def connect(self, replicas: Sequence[Replica]) -> None:
        """These are all there are."""
        self.replicas = [replica for replica in replicas if self._roles[replica.pool] != "prefill"]
        self.prefill_replicas = [replica for replica in replicas if self._roles[replica.pool] == "prefill"]

    def send(self, request: Request, chosen: Replica) -> None:
        """A request that arrives now and will be answered by that replica."""
        senders = self._senders(request, chosen)
        if not senders:
            chosen.submit(request)
            return
        prefill = Request(
            request.index,
            request.request_id,
            request.arrival_s,
            request.num_prompt_tokens,
            1,
            request.priority,
            request.lora,
        )
        sender = self.prefill_router.choose(prefill, senders)
        self._source.fit(prefill, sender.pool)
        self._handovers.add(Handover(prefill, request, sender, chosen))
        sender.submit(prefill)

    def _senders(self, request: Request, receiver: Replica) -> Sequence[Replica]:
        """Who could prefill a request for that replica; nobody where it is to compute the prompt itself."""
        if self._roles[receiver.pool] != "decode":
            return ()
        num_tokens = request.num_prompt_tokens
        num_cached_tokens = receiver.num_cached_blocks(request) * self._block_sizes[receiver.pool]
        if not self._decider.prefills_elsewhere(num_tokens, num_cached_tokens):
            return ()
        return [replica for replica in self.prefill_replicas if num_tokens <= self._longest_prompts[replica.pool]]

    def prefilled(self, replica: int, finished: Sequence[Request]) -> None:
        """Prompts have been computed at a replica: their decode replicas get the requests, those of one instant in trace order."""
        if not self._prefilled:
            At(self._env, self._env.now, ASK).callbacks.append(self._hand_over)
        self._prefilled += finished
        if self.prefill_router.listens:
            for prefill in finished:
                self.prefill_router.answered(prefill, replica)

    def _hand_over(self, _: simpy.Event) -> None:
        prefilled, self._prefilled = sorted(self._prefilled, key=lambda prefill: prefill.index), []
        for prefill in prefilled:
            handover = self._handovers.prefilled(prefill)
            handover.request.first_scheduled_s = prefill.first_scheduled_s
            handover.receiver.submit(handover.request)
