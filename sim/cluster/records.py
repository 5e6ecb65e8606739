"""The records of a run: those of each replica, and all of them merged."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Self

import numpy as np

from sim.cluster.handover_records import HandoverRecords
from sim.cluster.lives import Life
from sim.cluster.shared_records import SharedRecords
from sim.engine.leap_records import LeapRecords
from sim.engine.rank_records import RankRecords
from sim.engine.records import (
    EngineRecords,
    Ints,
    LoraRecords,
    OffloadRecords,
    Records,
    RequestRecords,
    SpeculationRecords,
    SwapRecords,
)
from sim.engine.request_table import NO_REPLICA, RequestTable
from sim.engine.token_gaps import JoinedGaps
from sim.engine.whole_requests import whole_requests


@dataclass(frozen=True)
class ClusterRecords:
    """The run as a whole, requests in trace order and steps replica by replica; and the records of each replica.

    `replica` has the number of the replica that served each request, NO_REPLICA for those rejected on arrival; `pool_of` the
    number of each replica's pool. `lives` say when replicas, or servers of several, started and were gone, where they came and went;
    `shares` are the requests, and who served them, where some ask for several answers: once for each replica that has any of these;
    `handovers` are those of a fleet in which some prefill for others, `shared` is what came of sharing KV, where they do, and `ranks` what
    replicas in lock step cost each other, server by server; `server_of` is the number of each replica's server, where several have several.
    """

    merged: Records
    replicas: tuple[EngineRecords, ...]
    replica: Ints
    pool_of: tuple[int, ...]
    lives: tuple[Life, ...] = ()
    handovers: HandoverRecords | None = None
    shared: SharedRecords | None = None
    ranks: tuple[RankRecords, ...] = ()
    server_of: tuple[int, ...] = ()
    shares: tuple[RequestRecords, Ints] | None = None

    @classmethod
    def of(
        cls,
        parts: Sequence[EngineRecords],
        requests: RequestTable,
        pool_of: tuple[int, ...],
        lives: tuple[Life, ...] = (),
        handovers: HandoverRecords | None = None,
        shared: SharedRecords | None = None,
        ranks: tuple[RankRecords, ...] = (),
        server_of: tuple[int, ...] = (),
    ) -> Self:
        """The records of each replica, and the request table that all of them filled in."""
        answers, replica, rows, shares = requests.records(), requests.replica, requests.answer_rows, None
        merged = _merged(parts, answers)
        if rows is not None:
            merged, shares = _of_requests(merged, rows.request), _shares(answers, rows.request, replica)
            replica = replica[: len(merged.requests)]
        whole = merged.requests
        handovers = handovers and handovers.sent_at(whole.arrival_s)
        num_ended = np.count_nonzero(np.isfinite(whole.finish_s)) + len(whole.rejected) + len(whole.failed)
        assert num_ended == len(whole), "every request is completed, rejected or failed, once"
        return cls(merged, tuple(parts), replica, pool_of, lives, handovers, shared, ranks, server_of, shares)

    @cached_property
    def pools(self) -> tuple[Records, ...]:
        """The records of each pool: its replicas', and those of the requests that it served, or of the prompts that it computed."""
        if len(set(self.pool_of)) == 1:
            return (self.merged,)
        return tuple(self._pool(number) for number in range(max(self.pool_of) + 1))

    def _pool(self, number: int) -> Records:
        members = [replica for replica, pool in enumerate(self.pool_of) if pool == number]
        requests, replica = self.served(*members)
        rows = np.flatnonzero(np.isin(replica, members))
        return _merged([self.replicas[member] for member in members], requests.only(rows))

    def served(self, *numbers: int) -> tuple[RequestRecords, Ints]:
        """The requests among which are those of some replicas of a pool, and who served each: prompts, if they prefill for others."""
        if self.handovers and np.isin(self.handovers.prefill_replica, numbers).any():
            return self.handovers.prefills, self.handovers.prefill_replica
        return self.shares or (self.merged.requests, self.replica)

    @property
    def span_s(self) -> float:
        """From the first arrival to the end of the last step of any replica; 0 if no step ran."""
        ends_s = [part.leaps.last_end_s for part in self.replicas if len(part.leaps)]
        return max(ends_s) - float(self.merged.requests.arrival_s[0]) if ends_s else 0.0

    @property
    def busy_fraction(self) -> float | None:
        """Share of that time in which steps were running, over all replicas while they were there; None if no step ran."""
        replica_s = self.replica_s()
        return self.merged.leaps.busy_s / replica_s if replica_s else None

    def replica_s(self, pool: int | None = None) -> float:
        """Replicas times the seconds of that time in which they held their GPUs; those of a pool, or all."""
        if not self.lives:
            return self.span_s * (len(self.replicas) if pool is None else self.pool_of.count(pool))
        start_s = float(self.merged.requests.arrival_s[0])
        lives = [life for life in self.lives if pool is None or life.pool == pool]
        return sum(life.held_s(start_s, start_s + self.span_s) * len(self.replicas_of(life)) for life in lives)

    def replicas_of(self, life: Life) -> list[int]:
        """The numbers of the replicas whose life it is: that of a server is one of all its engines."""
        if not self.server_of:
            return [life.number]
        return [replica for replica, server in enumerate(self.server_of) if server == life.number]


def _merged(parts: Sequence[EngineRecords], requests: RequestRecords) -> Records:
    whole = joined(parts)
    return Records(requests=requests, **{field.name: getattr(whole, field.name) for field in fields(EngineRecords)})


def _of_requests(answers: Records, request: Ints) -> Records:
    """The records of answers as those of their requests."""
    offload = answers.offload and answers.offload.of_requests(request)
    stored = answers.stored and answers.stored.of_requests(request)
    return replace(answers, requests=whole_requests(answers.requests, request), offload=offload, stored=stored)


def _shares(answers: RequestRecords, request: Ints, replica: Ints) -> tuple[RequestRecords, Ints]:
    """What each replica did of each request."""
    num_numbers = int(replica.max()) + 1 - NO_REPLICA
    found, share = np.unique(request * num_numbers + replica - NO_REPLICA, return_inverse=True)
    return whole_requests(answers, share), found % num_numbers + NO_REPLICA


def joined(parts: Sequence[EngineRecords]) -> EngineRecords:
    """The records of several engines, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return EngineRecords(
        leaps=LeapRecords.joined([part.leaps for part in parts]),
        gaps=JoinedGaps([part.gaps for part in parts]),
        prefix_cache_queries=sum(part.prefix_cache_queries for part in parts),
        prefix_cache_hits=sum(part.prefix_cache_hits for part in parts),
        num_evictions=sum(part.num_evictions for part in parts),
        offload=OffloadRecords.joined([part.offload for part in parts if part.offload]),
        stored=OffloadRecords.joined([part.stored for part in parts if part.stored]),
        lora=LoraRecords.joined([part.lora for part in parts if part.lora]),
        swaps=SwapRecords.joined([part.swaps for part in parts if part.swaps]),
        speculation=SpeculationRecords.joined([part.speculation for part in parts if part.speculation]),
        stage_busy_s=_joined_stages([part.stage_busy_s for part in parts]),
    )


def _joined_stages(parts: Sequence[tuple[float, ...] | None]) -> tuple[float, ...] | None:
    """Stage by stage, where all have as many."""
    stages = [part for part in parts if part is not None]
    if len(stages) < len(parts) or len(set(map(len, stages))) > 1:
        return None
    return tuple(map(sum, zip(*stages, strict=True)))
