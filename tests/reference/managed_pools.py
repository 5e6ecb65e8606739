"""A naive fleet that changes and in which spots of the first pool prefill for those of the second.

Each request that is prefilled elsewhere has a way: its prompt at one spot, its KV kept there until it has been pulled or nobody is heard of
any more, and itself at the other spot. What is pure (the network, deciders) is the product's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, NamedTuple

import numpy as np
import simpy

from sim.cluster.autoscaling.autoscaler import Observed, Shown
from sim.cluster.clients import AT_THEIR_TIMES, Clients
from sim.cluster.dynamics import Dynamics
from sim.cluster.network import Network, NetworkCosts
from sim.engine.config import SchedulerConfig
from sim.engine.kv_cache_manager import longest_that_fits
from sim.workload.trace import Trace
from tests.reference import managed
from tests.reference.arrivals import ANSWERED, FLEET, TRANSFER, Due
from tests.reference.clients import Senders
from tests.reference.cluster import send
from tests.reference.connector import Job as Transfer
from tests.reference.connector import Remote
from tests.reference.disaggregation import Pool, prefills_of
from tests.reference.front_door import let_in, make_requests
from tests.reference.kv_cache import PrefixHit
from tests.reference.managed import Job, ManagedFleet, Spot, again
from tests.reference.modes import Transfers
from tests.reference.multi_connector import in_one
from tests.reference.recorder import Recorder
from tests.reference.replica import Process, Replica
from tests.reference.request import Request

PREFILL = 0


class Rules(NamedTuple):
    """Of handing over: `lease_s` from the end of a prefill, renewed while the other side lives, or not."""

    costs: NetworkCosts
    least_uncached_tokens: int = 1
    lease_s: float = 30.0
    is_renewed: bool = True
    recomputes: bool = False
    idle_sleep_s: float = 2.0


@dataclass(eq=False)
class Way:
    """Of one attempt, from an entry of one spot to an entry of another; `stage` is prefilling, held, pulling or over.

    `sending` keeps the KV at the engine that has computed it.
    """

    job: Job
    attempt: Request
    prefill: Request
    sent_from: Any
    sender: Spot
    sent_to: Any
    receiver: Spot
    sending: "Kept | None" = None
    stage: str = "prefilling"
    prefilled_s: float = 0.0
    is_delivered: bool = False
    is_kept: bool = True
    is_lost: bool = False
    is_dropped: bool = False
    pulling: simpy.Process | None = None


class Kept(Remote):
    """A connector whose pulls the fleet does; what it sends it keeps until it is told."""

    def __init__(self, fleet: "ManagedPools", engine: Any, number: int, config: SchedulerConfig) -> None:
        super().__init__(fleet.transfers, engine.scheduler.kv, config)
        self._fleet = fleet
        self.number = number

    def load(self, request: Request, hit: PrefixHit, num_external: int) -> None:
        """It is asked for from now on, though the batch that does so may have to wait for those of other ranks."""
        super().load(request, hit, num_external)
        next(way for way in self._fleet.ways if way.attempt is request).stage = "pulling"

    def begin(self, start_s: float) -> float:
        asked = self._asked
        super().begin(start_s)
        for transfer in asked:
            transfer.end_s = None
            self._fleet.pull(transfer, start_s, self.number)
        return start_s

    def finished(self, request: Request) -> bool:
        if not request.script.is_sent_on:
            return False
        self._under_way.append(Transfer(request, "send"))
        next(way for way in self._fleet.ways if way.prefill is request).sending = self
        return True

    def has_all(self, request: Request) -> None:
        request.has_asked_remote = True
        way = next(way for way in self._fleet.ways if way.attempt is request)
        way.stage = "over"
        self._fleet.let_go(way)

    def may_free(self, prefill: Request, now_s: float) -> None:
        next(transfer for transfer in self._under_way if transfer.request is prefill).end_s = now_s


class ManagedPools(ManagedFleet):
    """`ways` in order of their beginnings."""

    def __init__(
        self,
        env: simpy.Environment,
        trace: Trace,
        pools: tuple[Pool, Pool],
        requests: list[Request],
        dynamics: Dynamics,
        rules: Rules,
        *,
        start_up_s: float,
        router: str,
        seed: int,
    ) -> None:
        self.trace, self.pools, self.rules = trace, pools, rules
        self.ways: list[Way] = []
        self.done: list[Way] = []
        self.prefill_draws = Random(seed)  # noqa: S311
        self.prefill_chosen: list[Spot] = []
        self.prefill_answers: list[tuple[float, int, float]] = []
        self.pulls: dict[int, tuple[float, float, int, int]] = {}
        self.num_failed = self.num_expired = 0
        self.prefills = prefills_of(trace, pools[PREFILL].config)
        self.network = Network(env, rules.costs)
        kinds = [managed.Pool(pool.step_time, pool.num_replicas, start_up_s) for pool in pools]
        super().__init__(env, pools[1].config, kinds, router, requests, dynamics, seed=seed)
        for spot in self.spots:
            for _ in self.engine_numbers(spot):
                self.network.add(self.pools[spot.pool].kv.num_gpus)

    @property
    def num_waves(self) -> Sequence[int]:
        """Of ranks that step together."""
        return ()

    @property
    def transfers(self) -> Transfers:
        return Transfers("nixl", "kv_both", reports_at_start=True, recomputes_failed=self.rules.recomputes)

    def replica(self, spot: Spot, recorder: Recorder) -> Replica:
        return self.alone(spot, recorder, spot.number)

    def alone(self, spot: Spot, recorder: Recorder, number: int) -> Replica:
        """One that steps by itself."""
        pool = self.pools[spot.pool]
        engine = Replica(
            self.env,
            pool.config,
            spot.step_time,
            recorder,
            number=number,
            modes=pool.modes(self.transfers, self.rules.idle_sleep_s),
            on_finished=lambda request: self.finished(spot, request),
        )
        self.connect(engine, pool, number)
        return engine

    def connect(self, engine: Any, pool: Pool, number: int) -> None:
        """It hands over and fetches from now on."""
        kept, kv = Kept(self, engine, number, pool.config), engine.scheduler.kv
        engine.scheduler.connector = in_one(kept, pool.offload, kv, pool.config)

    def answers_requests(self, spot: Spot) -> bool:
        return spot.pool != PREFILL

    # -- there -------------------------------------------------------------------------------------------------------

    def hand(self, job: Job) -> None:
        spot = self.spot_of(job.sent_to)
        if job.num_lost:
            self.pulls.pop(job.attempt.index, None)
        entries = self.could_prefill(job.attempt, job.sent_to)
        if not entries:
            self.submit_at(job.sent_to, job.attempt)
            return
        entry = self.choose(entries, self.prefill_chosen, self.prefill_draws, self.num_prefilling)
        self.prefill_chosen.append(entry)
        prefill = again(self.prefills[job.attempt.index])
        prefill.arrival_s, prefill.num_prompt_tokens, prefill.max_tokens = (
            self.env.now,
            self.pools[spot.pool].num_handed_over(job.attempt),
            1,
        )
        sender = self.spot_of(entry)
        self.ways.append(Way(job, job.attempt, prefill, entry, sender, job.sent_to, spot))
        if sender.state == "ready":
            self.submit_at(entry, prefill)
        else:
            self.lose_jobs(sender, [])

    def could_prefill(self, request: Request, entry: Any) -> list[Any]:
        """The entries at which a request could be prefilled for that one."""
        num_cached = max(engine.scheduler.kv.held_prefix(request).num_tokens for engine in self.engines_at(entry))
        config = self.pools[PREFILL].config
        longest = min(config.max_model_len - 1, longest_that_fits(config))
        is_short = request.num_prompt_tokens - num_cached < self.rules.least_uncached_tokens
        if is_short or request.num_prompt_tokens > longest:
            return []
        return [entry for entry in self.unbroken() if not self.answers_requests(entry)]

    def num_prefilling(self, entry: Any) -> int:
        return sum(way.sent_from is entry and way.stage == "prefilling" for way in self.ways[:])

    # -- and back ----------------------------------------------------------------------------------------------------

    def finished(self, spot: Spot, request: Request) -> None:
        if not self.answers_requests(spot):
            self.prefill_done(next(way for way in self.ways if way.prefill is request))
            return
        if not (request.script.recv_fails and request.num_output_tokens < request.max_tokens):
            super().finished(spot, request)
            return
        self.lose_kv(spot, request)

    def prefill_done(self, way: Way) -> None:
        now_s = self.env.now
        way.stage, way.prefilled_s = "held", now_s
        self.prefill_answers.append((now_s, way.sender.number, now_s - way.job.came_s))
        if self.breakers:
            self.breakers[way.sent_from.number].succeeded(now_s)
        self.done.append(way)
        self.env.process(self.deliver())
        if not self.rules.is_renewed:
            self.at(self.rules.lease_s, FLEET, lambda: self.expire(way))

    def deliver(self) -> Process:
        yield Due(self.env, 0, ANSWERED)
        done, self.done = sorted(self.done, key=lambda way: way.prefill.index), []
        for way in done:
            if not way.is_dropped:
                way.is_delivered = True
                way.attempt.script = replace(way.attempt.script, is_remote=True)
                way.attempt.first_scheduled_s = way.prefill.first_scheduled_s
                self.submit_at(way.sent_to, way.attempt)

    def pull(self, transfer: Transfer, start_s: float, engine: int) -> None:
        way = next(way for way in self.ways if way.attempt is transfer.request)
        if way.is_dropped:
            return
        way.pulling = self.env.process(self.pulled(way, transfer, start_s, engine))

    def pulled(self, way: Way, transfer: Transfer, start_s: float, engine: int) -> Process:
        try:
            if start_s > self.env.now:
                yield Due(self.env, start_s - self.env.now, TRANSFER)
            if not way.is_lost:
                begun_s, num_tokens = self.env.now, self.pools[way.receiver.pool].num_handed_over(transfer.request)
                kvs = [self.pools[spot.pool].kv for spot in (way.sender, way.receiver)]
                load = kvs[1].pulled(num_tokens - transfer.num_tokens, num_tokens, sender_gpus=kvs[0].num_gpus)
                assert way.sending
                yield from self.network.pull(way.sending.number, engine, load)
                row = way.attempt.index
                self.pulls[row] = (begun_s, self.env.now, load.num_bytes, way.sending.number)
        except simpy.Interrupt:
            if way.is_dropped:
                return
        if way.is_lost:
            self.num_failed += 1
            way.attempt.script = replace(way.attempt.script, recv_fails=True)
        transfer.end_s = self.env.now
        way.stage = "over"
        self.let_go(way)

    def let_go(self, way: Way) -> None:
        """The sender hears that it may free the KV."""
        if way.is_kept:
            way.is_kept = False
            assert way.sending
            way.sending.may_free(way.prefill, self.env.now)
            self.give_back(way.sender)

    def expire(self, way: Way) -> None:
        if way.is_kept:
            self.num_expired += 1
            way.is_lost = way.stage == "held"
            self.let_go(way)

    # -- losses ------------------------------------------------------------------------------------------------------

    def lose_jobs(self, spot: Spot, jobs: list[Job]) -> None:
        self.part_from(spot)
        if self.answers_requests(spot):
            for job in jobs:
                self.drop(job, is_known=False)
            super().lose_jobs(spot, jobs)
            return
        for way in [way for way in self.ways if way.sender is spot and way.is_kept and way.stage != "prefilling"]:
            way.is_lost, way.is_kept = True, False
            if way.pulling and way.stage == "pulling":
                way.pulling.interrupt()
        for way in [way for way in self.ways if way.sender is spot and way.stage == "prefilling"]:
            way.stage, way.is_dropped = "over", True
            receiver = way.receiver
            self.leave(way.job)
            self.blame(way.sent_from)
            self.lose_job(way.job, f"{self.kind} {spot.number} was lost")
            self.give_back(receiver)
        self.dispatch_soon()

    def drop(self, job: Job, *, is_known: bool) -> None:
        """Its attempt leaves the spot that was to answer it, which lives and tells of it or does not."""
        way = next((way for way in self.ways if way.attempt is job.attempt and way.stage != "over"), None)
        if way is None:
            return
        if way.stage == "prefilling":
            way.stage, way.is_dropped = "over", True
            self.abort_at(way.sent_from, way.prefill, "")
            self.give_back(way.sender)
        elif not is_known:
            way.is_dropped = True
            if way.stage == "pulling" and way.pulling:
                way.pulling.interrupt()
            way.stage = "over"
            if self.rules.is_renewed:
                self.at(self.silence_s(way), FLEET, lambda: self.expire(way))
        elif way.stage == "held":
            way.stage, way.is_dropped = "over", True
            self.let_go(way)

    def silence_s(self, way: Way) -> float:
        """How long from now until the sender gives up on a receiver that it last heard of at a multiple of a sixth of the lease."""
        now_s, lease_s = self.env.now, self.rules.lease_s
        heard_s = now_s - now_s % (lease_s / 6)
        return max(way.prefilled_s + lease_s, heard_s + 2 / 3 * lease_s) - now_s

    def abort(self, job: Job, reason: str) -> None:
        way = next((way for way in self.ways if way.attempt is job.attempt and way.stage != "over"), None)
        self.drop(job, is_known=True)
        if way is None or way.is_delivered:
            super().abort(job, reason)

    def give_back(self, spot: Spot) -> None:
        super().give_back(spot)
        if spot.state == "empty":
            self.part_from(spot)

    def part_from(self, spot: Spot) -> None:
        """Engines that come there have met nobody."""
        for number in self.engine_numbers(spot):
            self.network.forget(number)

    def is_busy(self, spot: Spot) -> bool:
        if self.answers_requests(spot):
            return super().is_busy(spot)
        mine = [way for way in self.ways if way.sender is spot]
        return any(way.stage == "prefilling" or (way.prefilled_s and way.is_kept) for way in mine)

    # -- what autoscalers see ----------------------------------------------------------------------------------------

    def observed(self, pool: int, window_s: float) -> Observed:
        found = super().observed(pool, window_s)._replace(computes_prompts=pool == PREFILL, generates=pool != PREFILL)
        if pool != PREFILL:
            return found
        jobs = [job for job in self.jobs.values() if job.came_s > self.env.now - window_s]
        prompts = [self.pristine[job.attempt.index].num_prompt_tokens for job in jobs]
        return found._replace(num_arrived=len(jobs), num_prompt_tokens=sum(prompts))

    def shown(self, spot: Spot, window_s: float) -> Shown:
        found = super().shown(spot, window_s)
        if self.answers_requests(spot) or not window_s:
            return found
        now_s = self.env.now
        ttfts = [
            ttft_s for at_s, number, ttft_s in self.prefill_answers if number == spot.number and at_s > now_s - window_s
        ]
        ttfts += [now_s - way.job.came_s for way in self.ways if way.sender is spot and way.stage == "prefilling"]
        return found._replace(ttfts_s=sorted(ttfts), tpots_s=[])


@dataclass
class ServedPools:
    """How requests ended, by which spot, and the pulls: begun, ended, bytes and sender by row."""

    requests: Any
    replica: list[int]
    lives: Sequence[Any]
    pulls: dict[int, tuple[float, float, int, int]] = field(default_factory=dict)
    num_failed: int = 0
    num_expired: int = 0
    num_waves: Sequence[int] = ()


def simulate_managed_pools(
    trace: Trace,
    pools: tuple[Pool, Pool],
    dynamics: Dynamics,
    rules: Rules,
    *,
    start_up_s: float,
    router: str,
    clients: Clients = AT_THEIR_TIMES,
    seed: int = 0,
    kind: "type[ManagedPools]" = ManagedPools,
) -> ServedPools:
    """Every step of every replica, and every decision of the gateway."""
    if clients.users:
        trace = replace(trace, arrival_s=np.zeros(len(trace)))
    env = simpy.Environment(initial_time=min(0.0, float(trace.arrival_s[0])))
    requests = make_requests(trace, pools[1].config, pools[1].scripts)
    fleet = kind(env, trace, pools, requests, dynamics, rules, start_up_s=start_up_s, router=router, seed=seed)
    senders = Senders(env, fleet.submit, clients.max_concurrency)
    senders.expect(let_in(requests))
    fleet.on_end = senders.tokens_back
    send(env, senders, trace, requests, clients)
    env.run()
    found = managed.ended_fleet(fleet, requests, len(trace))
    return ServedPools(*found, fleet.pulls, fleet.num_failed, fleet.num_expired, fleet.num_waves)
