"""The engine that walks, in a cluster: what it asks of a peer, and when it hears of transfers."""

from collections.abc import Callable

import simpy

from sim.cluster.clock import ANSWER, At
from sim.cluster.replica import LiveReplica
from sim.engine.request import Request
from sim.engine.request_source import RequestSource
from sim.engine.request_table import RequestTable
from sim.engine.walking.connector import Transfer
from sim.engine.walking.core import WalkingCore
from sim.engine.walking.modes import Modes
from sim.engine.walking.recorder import WalkRecorder
from sim.specs.kv_transfer import KVTransferConfig
from tests.makers import ONE_SECOND, Ask, make_config, make_trace


class Link:
    """Prompts of some requests lie elsewhere; a transfer takes some time, but nobody knows how much until it is over."""

    def __init__(self, env: simpy.Environment, remote: set[str], sent_on: set[str], takes_s: float) -> None:
        self._env = env
        self._remote = remote
        self._sent_on = sent_on
        self._takes_s = takes_s
        self.log: list[tuple[float, str, str, int]] = []
        self.wake: Callable[[], None] = lambda: None

    def num_tokens_elsewhere(self, request: Request) -> int:
        return request.num_prompt_tokens if request.request_id in self._remote else 0

    def loads_in_step(self, request: Request) -> bool:  # noqa: ARG002 - a peer's interface
        return False

    def has_all(self, request: Request) -> None: ...

    def is_sent_on(self, request: Request) -> bool:
        return request.request_id in self._sent_on

    def begin(self, transfer: Transfer) -> None:
        self._remote.discard(transfer.request.request_id)
        self._env.process(self._move(transfer))

    def _move(self, transfer: Transfer):  # type: ignore[no-untyped-def]  # noqa: ANN202 - a process
        yield At(self._env, transfer.start_s, ANSWER)
        self.log.append((self._env.now, "begins", transfer.request.request_id, transfer.num_tokens))
        yield At(self._env, self._env.now + self._takes_s, ANSWER)
        self.log.append((self._env.now, "ends", transfer.request.request_id, transfer.num_tokens))
        transfer.end_s = self._env.now
        self.wake()


def served(
    asks: list[Ask], modes: Modes, env: simpy.Environment, **arguments: object
) -> tuple[WalkingCore, RequestTable, list[tuple[float, str]]]:
    """Requests that all arrive at once, and when each was answered."""
    config = make_config(**arguments)
    source = RequestSource(make_trace(asks), config)
    table = RequestTable(source)
    core = WalkingCore(config, ONE_SECOND, WalkRecorder(table), start_s=0.0, num_keys=source.num_keys(), modes=modes)
    answered: list[tuple[float, str]] = []
    replica = LiveReplica(
        env, core, 0, 0, lambda finished: answered.extend((env.now, request.request_id) for request in finished)
    )
    if isinstance(modes.peer, Link):
        modes.peer.wake = replica.wake
    for request in source:
        replica.submit(request)
    env.run()
    return core, table, answered


def test_a_prompt_that_lies_elsewhere_is_loaded_beside_the_batches_of_others() -> None:
    """B's 8 tokens are asked for with A's first batch and have come by 2.5; from 3 on its last token is computed."""
    env = simpy.Environment()
    link = Link(env, {"B"}, set(), takes_s=2.5)
    modes = Modes(kv_transfer=KVTransferConfig("kv_consumer"), peer=link, idle_sleep_s=0.001)
    core, table, answered = served([Ask("A", 8, 6), Ask("B", 8, 3)], modes, env)
    assert link.log == [(0.0, "begins", "B", 8), (2.5, "ends", "B", 8)]
    assert table.records().first_scheduled_s.tolist() == [0.0, 3.0]
    assert answered == [(6.0, "A"), (6.0, "B")]
    assert core.state.num_free_blocks == core.state.config.num_usable_blocks


def test_blocks_are_held_until_they_have_been_sent() -> None:
    """A ends at 1 and holds its 2 blocks of 3 until 3.5; B, which needs 2, begins when the engine hears of that."""
    env = simpy.Environment()
    link = Link(env, set(), {"A"}, takes_s=2.5)
    modes = Modes(kv_transfer=KVTransferConfig("kv_producer"), peer=link, idle_sleep_s=0.25)
    _, table, answered = served([Ask("A", 8, 1), Ask("B", 8, 1)], modes, env, num_gpu_blocks=4, max_model_len=9)
    assert link.log == [(1.0, "begins", "A", 8), (3.5, "ends", "A", 8)]
    assert answered[0] == (1.0, "A")
    assert table.records().first_scheduled_s.tolist()[0] == 0.0
    assert 3.5 < table.records().first_scheduled_s.tolist()[1] <= 4.0
