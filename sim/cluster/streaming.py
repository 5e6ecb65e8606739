"""A run that is longer than memory: requests come in parts of a trace, and what has ended is handed on and forgotten.

Whoever pulls the parts does so as the clock passes: when the last request of one has been sent, all that the engines have recorded is
taken from them, and only then the next part is asked for. Nothing is advanced for that, so that steps are those of a run of the whole.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import simpy

from sim.cluster.clients import Clients
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.gateway import Gateway
from sim.cluster.parallel_sampling import ParallelSampling
from sim.cluster.queue_limits import QueueLimits
from sim.cluster.routers.router import Fleet
from sim.cluster.routers.table import router_for
from sim.cluster.simulation import Member, serve_open
from sim.engine.core import EngineCore
from sim.engine.ended_requests import Ended, EndedRequests
from sim.engine.growing_keys import FIRST_PRIVATE_KEY, GrowingKeys
from sim.engine.recorder import Recorder
from sim.engine.records import EngineRecords
from sim.engine.request import Request
from sim.engine.request_source import RequestSource, answer_name, further_answer
from sim.engine.walking.modes import PLAIN
from sim.errors import ConfigError
from sim.workload.adapters import num_adapters
from sim.workload.trace import Segment, Trace

WAITS = "whose requests wait for the answers to others, and so come at times that the trace does not tell"
UNSTREAMED = {
    "lora_name": "as the engine that brings adapters in keeps records of all its steps until the end",
    "session_id": WAITS,
    "stage": WAITS,
    "max_concurrency": WAITS,
}
"""Columns with which no trace is streamed, and why."""
FURTHER_ANSWERS = 1 << 50
Prompt = tuple[Segment, ...]


class StreamPart(NamedTuple):
    """What happened since the part before: requests that came, and why some of them were turned away, by row; what ended; and what each
    engine did.
    """

    sent: Trace
    rejected: Mapping[int, str]
    ended: Ended
    engines: tuple[EngineRecords, ...]


def why_not_streamed(plan: FleetPlan, clients: Clients) -> str | None:
    """What a stream cannot do, and what to do about it; None if there is nothing."""
    if plan.dynamics or plan.disaggregation or plan.sharing or plan.has_servers:
        return "replicas that come and go, hand KV over or share it, or are engines of several servers or addresses, or step together, are not simulated so"
    if len(plan.pools) > 1:
        return "pools that are unlike are not simulated so; give `replicas` that are alike"
    if clients != Clients():
        return "clients that wait for answers are not simulated so; leave users, max_concurrency and open_loop out"
    (pool,) = plan.pools
    if pool.modes != PLAIN or pool.config.caches_with_gaps:
        return (
            "speculation, pipeline stages, adapters, KV in host memory, what-ifs, and windows or states that stay cached in places alone"
            " (prefix_cache_retention_interval other than None; states always, unless enable_prefix_caching is off) are not simulated so"
        )
    engine = pool.config.engine
    if QueueLimits.of(engine) or not engine.enable_chunked_prefill or engine.scheduling_policy == "fair_share":
        return "max_num_queued_reqs, max_num_queued_tokens, fair_share and prompts in one piece (no chunked prefill) are not simulated so"
    return None


def simulate_stream(
    parts: Iterable[Trace], plan: FleetPlan, tell: Callable[[StreamPart], None], *, seed: int = 0
) -> None:
    """Replay the parts of a trace through replicas that are alike, and `tell` what came of it after each part.

    Raises ConfigError for what `why_not_streamed` names, for columns that no stream has, and for a router that looks at the whole trace.
    """
    reason = why_not_streamed(plan, Clients())
    if reason:
        raise ConfigError(f"`stream` replays in one pass, but {reason}; or leave `stream` out.")
    _Stream(parts, plan, tell, seed).run()


class _Answers:
    """The requests for further answers, whose numbers are behind those of all requests that may come."""

    def __init__(self, keys: GrowingKeys, ended: EndedRequests) -> None:
        self._keys = keys
        self._ended = ended
        self._num_made = 0
        self._asked: dict[Request, tuple[int, Prompt]] = {}

    def expect(self, request: Request, num_answers: int, prompt: Prompt) -> None:
        """It will ask for so many answers when it is sent, the first of which it is."""
        request.request_id = answer_name(0, request.request_id)
        self._asked[request] = num_answers, prompt

    def others(self, request: Request) -> Sequence[Request]:
        """Those for a request that is sent now."""
        if request not in self._asked:
            return ()
        num_answers, prompt = self._asked.pop(request)
        others = [self._other(request, number, prompt) for number in range(1, num_answers)]
        self._ended.expect(request, others)
        return others

    def _other(self, request: Request, number: int, prompt: Prompt) -> Request:
        other = further_answer(request, number, FURTHER_ANSWERS + self._num_made)
        self._num_made += 1
        if prompt:
            self._keys.give(other, prompt)
        return other


class _Stream:
    def __init__(self, parts: Iterable[Trace], plan: FleetPlan, tell: Callable[[StreamPart], None], seed: int) -> None:
        self._parts = iter(parts)
        self._tell = tell
        self._first = next(self._parts)
        self._env = simpy.Environment(initial_time=min(0.0, float(self._first.arrival_s[0])))
        self._config = plan.pools[0].config
        self._keys = GrowingKeys(self._config.block_size, len(self._config.kv_groups))
        self._ended = EndedRequests()
        step_time = plan.pools[0].step_time
        self._cores = [
            EngineCore(
                self._config,
                step_time,
                Recorder(self._ended, number),
                start_s=self._env.now,
                num_keys=FIRST_PRIVATE_KEY,
            )
            for number in range(plan.num_replicas)
        ]
        fleet = Fleet([self._config] * plan.num_replicas, None, seed)
        self._answers = _Answers(self._keys, self._ended)
        self._gateway = Gateway(
            self._env,
            router_for(plan.router, fleet, plan.num_replicas),
            sampling=ParallelSampling(self._answers, one_by_one=False),
        )
        self._pending: tuple[Trace, Mapping[int, str]] | None = None

    def run(self) -> None:
        members = [Member(core, number) for number, core in enumerate(self._cores)]
        serve_open(self._env, members, self._gateway, self._requests(), at_once=1)
        self._hand_on(tuple(member.records() for member in members))

    def _requests(self) -> Iterator[Request]:
        num_before = 0
        for part in self._with_first():
            if self._pending:
                self._hand_on(tuple(core.records_so_far() for core in self._cores))
                self._keys.forget_all_but(key for core in self._cores for key in core.keys)
            _check(part)
            source = RequestSource(replace(part, segments=None, n=None, lora_name=None), self._config)
            for request in source:
                row, request.index = request.index, num_before + request.index
                num_answers = 1 if part.n is None else int(part.n[row])
                prompt = self._prompt(part, row, request, num_answers)
                if prompt:
                    self._keys.give(request, prompt)
                if num_answers > 1:
                    self._answers.expect(request, num_answers, prompt)
                yield request
            num_before += len(part)
            self._pending = part, source.rejected

    def _prompt(self, part: Trace, row: int, request: Request, num_answers: int) -> Prompt:
        """What others may ask for: further answers to the same prompt, where the trace says nothing of any."""
        if not self._config.engine.enable_prefix_caching:
            return ()
        if part.segments is not None:
            return part.segments[row]
        return ((-1 - request.index, request.num_prompt_tokens),) if num_answers > 1 else ()

    def _with_first(self) -> Iterator[Trace]:
        yield self._first
        yield from self._parts

    def _hand_on(self, engines: tuple[EngineRecords, ...]) -> None:
        assert self._pending is not None, "a part that was sent"
        sent, rejected = self._pending
        self._tell(StreamPart(sent, rejected, self._ended.take(), engines))


def _check(part: Trace) -> None:
    """Raises ConfigError for columns that a stream would have to remember for good."""
    asked = {name: getattr(part, name) is not None for name in UNSTREAMED} | {"lora_name": num_adapters(part) > 0}
    found = next((name for name, is_there in asked.items() if is_there), None)
    if found:
        raise ConfigError(
            f"{part.source or 'the trace'} has the column `{found}`, which is not simulated as a stream, {UNSTREAMED[found]}; leave the"
            " column out, or leave `stream` out."
        )
