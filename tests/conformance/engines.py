"""The engines that can be held against recorded schedules."""

from collections.abc import Callable
from typing import Any, NamedTuple

import simpy

from sim.serving.arrivals import arrivals, make_requests, reject_impossible
from sim.serving.recorder import Recorder
from sim.serving.replica import Replica
from sim.serving.request import Request
from tests.conformance.case import Case


class Run(NamedTuple):
    """What an engine made of a case: its step log and, by id, what became of each request."""

    steps: list[dict[str, Any]]
    requests: dict[str, dict[str, Any]]


def run_reference(case: Case) -> Run:
    """Replay with every request walked in every step; like vLLM's bare scheduler, nothing is rejected for its size."""
    steps: list[dict[str, Any]] = []
    env = simpy.Environment()
    recorder = Recorder(steps.append)
    replica = Replica(env, case.config, case.step_time, recorder, max_passes=case.max_passes)
    requests = make_requests(case.trace, case.config)
    reject_impossible(requests, case.config, capacity_too=False)
    env.process(replica.run())
    env.process(arrivals(env, requests, replica))
    env.run()
    steps.sort(key=lambda step: step["i"])
    return Run(steps, {request.request_id: _life(request) for request in requests if not request.rejected})


def _life(request: Request) -> dict[str, Any]:
    return {
        "first_sched_ns": request.first_scheduled_s,
        "first_token_ns": request.first_token_s,
        "finish_ns": request.finish_s,
        "n_out": request.num_output_tokens,
        "n_preempt": request.num_preemptions,
        "cached": request.num_cached_tokens,
    }


ENGINES: dict[str, Callable[[Case], Run]] = {"reference": run_reference}
