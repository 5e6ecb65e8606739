"""Replicas of which a router sees what the test says, and requests in a few words."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sim.cluster.routers.router import Fleet, Router
from sim.cluster.routers.table import router_options
from sim.engine.metrics import Metrics
from sim.engine.request import Request
from sim.engine.request_source import RequestSource
from sim.workload.trace import Segment, Trace
from tests.configs import scheduler_config


@dataclass
class Shown:
    """A replica with this load, these metrics and these prefixes."""

    num_waiting: int = 0
    num_running: int = 0
    kv_cache_usage: float = 0.0
    num_cached: int = 0
    num_offloaded: int = 0
    number: int = 0
    pool: int = 0

    def submit(self, *answers: Request) -> None:
        raise NotImplementedError

    @property
    def load(self) -> tuple[int, int]:
        return self.num_waiting, self.num_running

    def metrics(self, at_s: float) -> Metrics:  # noqa: ARG002
        return self.num_waiting, self.num_running, self.kv_cache_usage

    def num_cached_blocks(self, request: Request) -> int:  # noqa: ARG002
        return self.num_cached

    def num_offloaded_blocks(self, request: Request, num_cached_blocks: int) -> int:  # noqa: ARG002
        return self.num_offloaded


def prompts(*paths: Sequence[Segment], session_id: tuple[str, ...] | None = None) -> Trace:
    """A request a prompt, a second apart."""
    count = len(paths)
    return Trace(
        request_id=tuple(f"r{row}" for row in range(count)),
        arrival_s=np.arange(count, dtype=np.float64),
        prompt_tokens=np.array([sum(tokens for _, tokens in path) for path in paths]),
        output_tokens=np.full(count, 10),
        session_id=session_id,
        segments=[tuple(path) for path in paths],
    )


CONFIG = scheduler_config(
    max_num_seqs=8, max_num_batched_tokens=256, max_model_len=100_000, num_gpu_blocks=1001, block_size=16
)


class Requests:
    """The requests of a trace behind a router, in any order and as often as a test says."""

    def __init__(self, router: str, trace: Trace, replicas: Sequence[Shown], *, seed: int = 0) -> None:
        fleet = Fleet([CONFIG] * len(replicas), RequestSource(trace, CONFIG), seed, sends_again=True)
        self.router: Router = router_options(router).router(fleet)
        self.trace = trace
        self.replicas = [replace(replica, number=number) for number, replica in enumerate(replicas)]

    def request(self, row: int) -> Request:
        return Request(row, f"r{row}", float(self.trace.arrival_s[row]), int(self.trace.prompt_tokens[row]), 10)

    def send(self, row: int) -> "Requests":
        """To every replica, as if it were the only one."""
        for replica in self.replicas:
            self.router.choose(self.request(row), [replica])
        return self

    def choose(self, row: int) -> int:
        return self.router.choose(self.request(row), self.replicas).number

    def all(self) -> list[int]:
        return [self.choose(row) for row in range(len(self.trace))]
