"""Recordings of data-parallel ranks: the balancer's choices, and waves of steps in which all ranks take part."""

import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Protocol

from sim.engine.balancer import Balancer as FastBalancer
from tests.conformance.case import load_parts
from tests.conformance.lockstep import ranks_in_lock_step
from tests.reference.front_door import make_requests
from tests.reference.waves import Balancer, Counts, Iteration, Ranks

Data = Mapping[str, Any]


class Balancing(Protocol):
    """A balancer that is told what was recorded."""

    def choose(self, request_id: str, rank: int | None) -> int: ...
    def update(self, counts: list[list[float]]) -> None: ...
    def answered(self, request_id: str) -> None: ...


class Reference:
    def __init__(self, data: Data) -> None:
        self._balancer = Balancer(data["engines"], data["client_count"], data["client_index"])

    def choose(self, request_id: str, rank: int | None) -> int:
        return self._balancer.choose(request_id, rank)

    def update(self, counts: list[list[float]]) -> None:
        self._balancer.counts = [Counts(int(waiting), int(running), usage) for waiting, running, usage in counts]

    def answered(self, request_id: str) -> None:
        del self._balancer.ranks[request_id]


class Fast:
    """The product's balancer; a request that is still in flight stays where it is."""

    def __init__(self, data: Data) -> None:
        self._balancer = FastBalancer(data["engines"], data["client_count"], data["client_index"])
        self._ranks: dict[str, int] = {}

    def choose(self, request_id: str, rank: int | None) -> int:
        if request_id not in self._ranks:
            self._ranks[request_id] = self._balancer.choose() if rank is None else rank
            if rank is not None:
                self._balancer.sent(rank)
        return self._ranks[request_id]

    def update(self, counts: list[list[float]]) -> None:
        self._balancer.update([(int(waiting), int(running), usage) for waiting, running, usage in counts])

    def answered(self, request_id: str) -> None:
        self._balancer.answered(self._ranks.pop(request_id))


BALANCERS: dict[str, Callable[[Data], Balancing]] = {"reference": Reference, "fast": Fast, "walking": Fast}


def choices_difference(data: Data, engine: str) -> str | None:
    """Where the choices part from the recorded ones, or None."""
    balancer = BALANCERS[engine](data)
    chosen = []
    for kind, what, *rank in data["events"]:
        if kind == "counts":
            balancer.update(what)
        elif kind == "finish":
            for request_id in what:
                balancer.answered(request_id)
        else:
            chosen.append(balancer.choose(what, rank[0] if rank else None))
    for number, (recorded, got) in enumerate(zip(data["choices"], chosen, strict=True)):
        if recorded != got:
            return f"choice {number} is {got}, recorded {recorded}"
    return None


def wave_difference(data: Data, engine: str) -> str | None:
    """Where the ranks' steps part from the recorded ones, or None."""
    routes, iterations = naive_ranks(data) if engine == "reference" else ranks_in_lock_step(data, engine)
    compact = json.dumps([routes, iterations], separators=(",", ":"))
    if sha256(compact.encode()).hexdigest() == data["result"]["digest"]:
        return None
    for number, (recorded, got) in enumerate(zip(data.get("iterations", ()), iterations, strict=False)):
        if recorded != got:
            return f"iteration {number} is {got}, recorded {recorded}"
    return f"{len(routes)} routes and {len(iterations)} iterations have another digest than those recorded"


def naive_ranks(data: Data) -> tuple[list[Any], list[Any]]:
    """Routes and iterations of the naive ranks."""
    trace, config, step_time = load_parts(data)
    parallel = data["dp"]
    ranks = Ranks(
        parallel["ranks"],
        config,
        step_time,
        sync_interval=parallel.get("sync_interval", 16),
        prefill_interval=parallel.get("prefill_schedule_interval", 1),
        counts_interval_s=parallel.get("lb_interval_ns", 100_000_000),
    )
    ranks.serve(make_requests(trace, config, capacity_too=False))
    routes = [[int(arrival_s), name, rank] for arrival_s, name, rank in ranks.routes]
    return routes, [_recorded_form(iteration) for iteration in ranks.iterations]


def _recorded_form(iteration: Iteration) -> list[Any]:
    ranks: list[Any] = []
    for batch, free in zip(iteration.batches, iteration.num_free_blocks, strict=True):
        if batch is None:
            ranks.append(0)
        else:
            rows = [[row.request.request_id, *row[1:4]] for row in batch.rows]
            ranks.append([rows, [request.request_id for request in batch.preempted], free])
    finished = [[request.request_id for request in ended] for ended in iteration.finished]
    return [int(iteration.start_s), int(iteration.end_s), iteration.wave, iteration.counter, ranks, finished]
