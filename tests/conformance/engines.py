"""The engines that can be held against recorded schedules. Like vLLM's bare scheduler, they reject nothing for its size."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from unittest.mock import patch

import simpy

from sim.cluster.gateway import Gateway
from sim.cluster.queue_limits import QueueLimits
from sim.cluster.routers.simple import TheOnlyOne
from sim.cluster.simulation import Member, serve_open
from sim.engine import leaps
from sim.engine.core import EngineCore
from sim.engine.driven import Core
from sim.engine.recorder import Recorder
from sim.engine.records import EngineRecords, RequestRecords
from sim.engine.request_source import RequestSource
from sim.engine.request_table import RequestTable
from sim.engine.step_log import StepLogger
from sim.engine.walking.core import WalkingCore
from sim.engine.walking.recorder import WalkRecorder
from sim.engine.walking.step_log import WalkLogger
from sim.errors import EngineCrashError
from tests.configs import changed
from tests.conformance.case import Case
from tests.conformance.scripts import RecordedStages, Scripts, walking_modes
from tests.reference.arrivals import arrivals
from tests.reference.front_door import let_in, make_requests
from tests.reference.modes import Modes
from tests.reference.recorder import Recorder as ReferenceRecorder
from tests.reference.replica import Replica as ReferenceReplica

LogRow = dict[str, Any]


class Run(NamedTuple):
    """What an engine made of a case: its step log and, by id, what became of each request that was let in.

    `kv_events` tell of transfers; a run that `crashed` ends where vLLM's engine would have died.
    """

    steps: list[LogRow]
    requests: dict[str, LogRow]
    kv_events: Sequence[Sequence[Any]] = ()
    crashed: bool = False


def run_fast(case: Case) -> Run:
    """Replay with what the product uses: counters and leaps, or, for what cannot be leapt over, the engine that walks."""
    if not case.modes.are_plain or case.config.caches_with_gaps:
        return run_walking(case)
    steps: list[LogRow] = []
    source = RequestSource(case.trace, case.config, capacity_too=False)
    table = RequestTable(source)
    recorder = Recorder(table)
    core = EngineCore(
        case.config,
        case.step_time,
        recorder,
        start_s=0.0,
        num_keys=source.num_keys(),
        log=StepLogger(steps.append),
        max_passes=case.max_passes or sys.maxsize,
    )
    env = simpy.Environment()
    serve_open(env, [Member(core)], Gateway(env, TheOnlyOne()), source)
    core.records()  # which writes down who has not ended
    return _run(case, steps, table.records())


def run_walking(case: Case) -> Run:
    """Replay with the product's engine that walks."""
    steps: list[LogRow] = []
    log = WalkLogger(steps.append, tells_modes="ext" in case.recorded)
    try:
        _, requests = walk(case, log)
    except EngineCrashError:
        if case.recorded["result"]["status"] != "assert":
            raise
        return Run([*steps, *log.unreturned_rows], {}, crashed=True)
    return _run(case, steps, requests)._replace(kv_events=log.kv_events)


def walk(case: Case, log: WalkLogger | None) -> tuple[EngineRecords, RequestRecords]:
    """What that engine records; where nobody reads a log, it counts what it can."""
    keyed = (
        changed(case.config, enable_prefix_caching=True) if case.modes.transfers else case.config
    )  # a CPU has contents too
    modes = walking_modes(case, Scripts(case))
    source = RequestSource(case.trace, keyed, hash_lookahead=[modes.num_hash_lookahead_tokens], capacity_too=False)
    table = RequestTable(source)
    core = WalkingCore(
        case.config,
        RecordedStages(case),
        WalkRecorder(table),
        start_s=0.0,
        modes=modes,
        num_keys=source.num_keys(),
        log=log,
        max_passes=case.max_passes or sys.maxsize,
    )
    env = simpy.Environment()
    with patch.object(leaps, "PANEL_BITS", ()):  # stages take whole nanoseconds
        _serve(env, core, case, source, table)
    records = core.records()  # which writes down who has not ended
    return records, table.records()


def _serve(env: simpy.Environment, core: Core, case: Case, source: RequestSource, table: RequestTable) -> None:
    if case.modes.limits_queue:
        serve_limited(env, core, case.modes, source, table)
    else:
        serve_open(env, [Member(core)], Gateway(env, TheOnlyOne()), source)


def serve_limited(env: simpy.Environment, core: Core, modes: Modes, source: RequestSource, table: RequestTable) -> None:
    """Serve what vLLM's own limits let in."""
    limits = QueueLimits(modes.max_num_queued_reqs, modes.max_num_queued_tokens)
    gateway = Gateway(env, TheOnlyOne(), reject=table.reject)
    serve_open(env, [Member(core, limits=limits)], gateway, source)


def run_reference(case: Case) -> Run:
    """Replay with every request walked in every step."""
    steps: list[LogRow] = []
    env = simpy.Environment()
    requests = make_requests(
        case.trace, case.config, case.scripts, capacity_too=False, speculation=case.modes.speculation
    )
    recorder = ReferenceRecorder(steps.append, logs_modes="ext" in case.recorded)
    replica = ReferenceReplica(env, case.config, case.step_time, recorder, modes=case.modes, max_passes=case.max_passes)
    env.process(replica.run())
    env.process(arrivals(env, let_in(requests), replica))
    try:
        env.run()
    except EngineCrashError:
        if case.recorded["result"]["status"] != "assert":
            raise
        return Run([*steps, *replica.unreturned_rows], {}, crashed=True)
    connector = replica.scheduler.connector
    events = connector.events if connector else ()
    return _run(case, steps, recorder.records(requests, replica.scheduler).requests)._replace(kv_events=events)


def _run(case: Case, steps: list[LogRow], requests: RequestRecords) -> Run:
    steps.sort(key=lambda step: int(step["i"]))
    return Run(steps, dict(_lives(case, requests)))


def _lives(case: Case, requests: RequestRecords) -> Mapping[str, LogRow]:
    """Each request's life in the recorder's words; never-scheduled requests have no cached tokens."""
    lives = {}
    for row, request_id in enumerate(case.trace.request_id):
        if row in requests.rejected:
            continue
        was_scheduled = not math.isnan(requests.first_scheduled_s[row])
        lives[request_id] = {
            "first_sched_ns": _time(requests.first_scheduled_s[row]),
            "first_token_ns": _time(requests.first_token_s[row]),
            "finish_ns": _time(requests.finish_s[row]),
            "n_out": int(requests.generated_tokens[row]),
            "n_preempt": int(requests.num_preemptions[row]),
            "cached": int(requests.num_cached_tokens[row]) if was_scheduled else None,
        }
    return lives


def _time(seconds: float) -> float | None:
    return None if math.isnan(seconds) else float(seconds)


ENGINES: dict[str, Callable[[Case], Run]] = {"fast": run_fast, "reference": run_reference, "walking": run_walking}
