"""Naive replicas of unlike pools: who can serve a request whole is one of its candidates, and it has that pool's block keys there."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple

import numpy as np
import simpy

from sim.cluster.clients import AT_THEIR_TIMES, Clients
from sim.engine.config import SchedulerConfig
from sim.steptime.protocol import StepTimeModel
from sim.workload.trace import Trace
from tests.reference.clients import Senders
from tests.reference.cluster import Served, send
from tests.reference.front_door import let_in, make_requests
from tests.reference.recorder import Recorder
from tests.reference.replica import Replica
from tests.reference.request import Request


class Member(NamedTuple):
    """A replica's pool."""

    config: SchedulerConfig
    step_time: StepTimeModel


class Sent(NamedTuple):
    request: Request
    number: int


Choose = Callable[[list[int], Sequence[Replica], list[Sent], Random], int]
"""One of the candidates' numbers, given all replicas and what was sent before."""


def any_of_them(candidates: list[int], _replicas: Sequence[Replica], _sent: list[Sent], rng: Random) -> int:
    return candidates[rng.randrange(len(candidates))]


def longest_ago(candidates: list[int], _replicas: Sequence[Replica], sent: list[Sent], _rng: Random) -> int:
    """Whose last turn was the longest ago; those that had none come first."""
    turns = {number: turn for turn, (_, number) in enumerate(sent)}
    return min(candidates, key=lambda number: turns.get(number, -1))


def least_loaded(candidates: list[int], replicas: Sequence[Replica], sent: list[Sent], _rng: Random) -> int:
    """Of the lowest score the first after the last that was chosen, round and round."""
    last = sent[-1].number if sent else -1
    in_turn = [number for number in candidates if number > last] + [number for number in candidates if number <= last]
    return min(in_turn, key=lambda number: 4 * replicas[number].load[0] + replicas[number].load[1])


def power_of_two(candidates: list[int], _replicas: Sequence[Replica], sent: list[Sent], rng: Random) -> int:
    if len(candidates) == 1:
        return candidates[0]
    first = candidates[rng.randrange(len(candidates))]
    others = [number for number in candidates if number != first]
    second = others[rng.randrange(len(others))]
    unanswered = [number for request, number in sent if request.finish_s is None]
    return first if unanswered.count(first) <= unanswered.count(second) else second


ROUTERS: dict[str, Choose] = {
    "random": any_of_them,
    "round_robin": longest_ago,
    "least_loaded": least_loaded,
    "power_of_two": power_of_two,
}


def simulate_pools(
    trace: Trace, members: Sequence[Member], router: str, *, clients: Clients = AT_THEIR_TIMES
) -> Served:
    """Every step of every replica; two of them at least."""
    if clients.users:
        trace = replace(trace, arrival_s=np.zeros(len(trace)))
    env = simpy.Environment(initial_time=min(0.0, float(trace.arrival_s[0])))
    requests, candidates, keyed = admit(trace, [member.config for member in members])
    sent: list[Sent] = []
    rng = Random(0)  # noqa: S311

    def submit(request: Request) -> None:
        number = ROUTERS[router](candidates[request.index], replicas, sent, rng)
        sent.append(Sent(request, number))
        request.block_keys = keyed[number][request.index].block_keys
        replicas[number].submit(request)

    senders = Senders(env, submit, clients.max_concurrency)
    senders.expect(let_in(requests))
    recorders = [Recorder() for _ in members]
    replicas = [
        Replica(env, *member, recorder, number=number, on_finished=senders.tokens_back)
        for number, (member, recorder) in enumerate(zip(members, recorders, strict=True))
    ]
    for replica in replicas:
        env.process(replica.run())
    send(env, senders, trace, requests, clients)
    env.run()
    parts = [
        recorder.records(requests, replica.scheduler) for recorder, replica in zip(recorders, replicas, strict=True)
    ]
    served = {request.index: number for request, number in sent}
    return Served(parts, [served.get(row, -1) for row in range(len(trace))])


def admit(
    trace: Trace, configs: Sequence[SchedulerConfig]
) -> tuple[list[Request], list[list[int]], list[list[Request]]]:
    """The requests; of each those who answer it at the greatest length; and what each member would make of them."""
    doors = [make_requests(trace, config) for config in configs]
    lengths = [[0 if request.rejected else request.max_tokens for request in door] for door in doors]
    longest = [max(of_row) for of_row in zip(*lengths, strict=True)]
    candidates = [
        [number for number in range(len(configs)) if lengths[number][row] == longest[row] > 0]
        for row in range(len(trace))
    ]
    whole = replace(trace, output_tokens=np.array(longest))
    keyed = [make_requests(whole, replace(config, max_model_len=10**6, num_gpu_blocks=10**6)) for config in configs]
    requests = keyed[0]
    for row, request in enumerate(requests):
        request.rejected = None
        if not longest[row]:
            request.max_tokens = doors[0][row].max_tokens
            request.rejected = "; ".join(dict.fromkeys(str(door[row].rejected) for door in doors))
    return requests, candidates, keyed
