"""The front end of a server, which a client's clock has beyond the engine's: HTTP, tokenizer, detokenizer and streaming.

It is another process than the engine. It takes a request in before the engine has it and passes tokens on after the engine has made
them, all tokens of a request alike: the time per token is the same by both clocks. Here all of that delays the answer, so that requests
reach the engine when they are sent.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
import simpy

from sim.cluster.arrivals import Process
from sim.cluster.clock import ARRIVAL, At
from sim.cluster.records import ClusterRecords
from sim.engine.records import Floats, Ints, RequestRecords
from sim.engine.request import Request
from sim.specs.operator_fits import HostFit

TOKENIZED_S = 3.5e-6  # a token of a prompt of random ones, as benchmarks send them: benchmarks/tokenizing.py
Clock = Literal["engine", "client"]
FITTED_AT_TOKENS = 600  # of the prompts that `request_s` was fitted to: 547 to 1,034, 600 on average


class FrontEnd(NamedTuple):
    """What a request takes whose prompt has FITTED_AT_TOKENS, and what each request adds that streams from the same server, itself too."""

    request_s: float
    stream_s: float

    @classmethod
    def of(cls, host: HostFit) -> "FrontEnd":
        return cls(host.front_end_s, host.front_end_request_s)

    def late_s(self, prompt_tokens: Ints | int, num_streams: Ints | int) -> Floats:
        """How much later than the engine has them a client sees a request's tokens."""
        tokenized_s = TOKENIZED_S * (prompt_tokens - FITTED_AT_TOKENS)
        return np.maximum(0.0, self.request_s + tokenized_s + self.stream_s * num_streams, dtype=np.float64)

    def seen_late_s(self, requests: RequestRecords) -> Floats:
        """The same of requests that one server has served, by those that stream as each has its first token."""
        first_s = requests.first_token_s
        begun_s, ended_s = np.sort(first_s[np.isfinite(requests.finish_s)]), np.sort(requests.finish_s)
        num_streams = np.searchsorted(begun_s, first_s, "right") - np.searchsorted(ended_s, first_s)
        return self.late_s(requests.prompt_tokens, num_streams)

    def seen(self, run: ClusterRecords) -> ClusterRecords:
        """The run by its clients' clock: first tokens and last ones are later, and so are all figures made of them."""
        requests = run.merged.requests
        late_s = np.zeros(len(requests))
        for server in np.unique(run.replica):
            rows = np.flatnonzero(run.replica == server)
            late_s[rows] = self.seen_late_s(requests.only(rows))
        later = replace(requests, first_token_s=requests.first_token_s + late_s, finish_s=requests.finish_s + late_s)
        return replace(run, merged=replace(run.merged, requests=later))


NO_FRONT_END = FrontEnd(0.0, 0.0)


class SeenLate:
    """Answers that clients have later than the engine; those of them who wait act on what they see."""

    def __init__(self, env: simpy.Environment, front_end: FrontEnd, ask: Callable[[Request], simpy.Event]) -> None:
        self._env = env
        self._front_end = front_end
        self._ask = ask
        self._num_open = 0

    def ask(self, request: Request) -> simpy.Event:
        """Send the request; the event happens when its client has seen the end."""
        return self._env.process(self._seen(request))

    def _seen(self, request: Request) -> Process:
        self._num_open += 1
        yield self._ask(request)
        late_s = self._front_end.late_s(request.num_prompt_tokens, self._num_open)
        self._num_open -= 1
        yield At(self._env, self._env.now + float(late_s), ARRIVAL)
