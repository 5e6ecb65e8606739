"""What engines share that hand KV over: the network between them, the books of what was handed over, and a store, if they have one."""

from collections.abc import Sequence
from dataclasses import replace

import simpy

from sim.cluster.engine_role import Engine
from sim.cluster.engines import StepLog, engine_core
from sim.cluster.fleet_plan import Disaggregation, Pool
from sim.cluster.handover_records import HandoverRecords
from sim.cluster.handovers import Handovers, Side
from sim.cluster.lock_step import RankCore
from sim.cluster.network import Network
from sim.cluster.shared_records import SharedRecords
from sim.cluster.sharing import Shared, Sharing
from sim.engine.request_source import RequestSource
from sim.engine.request_table import RequestTable
from sim.engine.walking.modes import POLLING_S, Modes
from sim.specs.kv_transfer import KVTransferConfig


class Exchange:
    """Makes the engines of a fleet with roles; both sides are configured as llm-d does it.

    A worker looks for what has come right after it has launched a pass.
    """

    def __init__(
        self,
        env: simpy.Environment,
        disaggregation: Disaggregation,
        pools: Sequence[Pool],
        source: RequestSource,
        idle_sleep_s: float = POLLING_S,
        *,
        sharing: Sharing | None = None,
    ) -> None:
        """`pools` are those of the replicas, by number."""
        self._num_engines = len(pools)
        policy, kvs = disaggregation.kv_load_failure_policy, [pool.kv for pool in pools]
        self.network = Network(env, disaggregation.costs, [kv.num_gpus for kv in kvs])
        self._shared: Shared | None = None
        if sharing is not None:
            self._shared = sharing.over(self.network, kvs, pools[0].config.block_size, len(source))
        self.handovers = Handovers(
            self.network,
            kvs,
            len(source),
            disaggregation.lease,
            recomputes=policy == "recompute",
        )
        self.prefills = RequestTable(source)
        self._nixl = KVTransferConfig(kv_role="kv_both", reports_at_start=True, kv_load_failure_policy=policy)
        self._idle_sleep_s = idle_sleep_s

    def core(
        self,
        pool: Pool,
        table: RequestTable,
        number: int,
        *,
        start_s: float,
        num_keys: int,
        step_log: StepLog | None = None,
    ) -> RankCore:
        """The engine of a replica of that number."""
        served = self.prefills if pool.role == "prefill" else table
        pool = pool._replace(modes=self._modes(pool, number))
        return engine_core(pool, served, number, start_s=start_s, num_keys=num_keys, step_log=step_log)

    def _modes(self, pool: Pool, number: int) -> Modes:
        modes = pool.modes
        if pool.role != "both":
            peer = Side(self.handovers, number)
            modes = replace(modes, kv_transfer=self._nixl, peer=peer, idle_sleep_s=self._idle_sleep_s)
        if self._shared is None:
            return modes
        return self._shared.modes_of(replace(modes, idle_sleep_s=self._idle_sleep_s), number, pool.role)

    def connect(self, number: int, engine: Engine) -> None:
        """An engine is there."""
        self.handovers.engines[number] = engine
        if self._shared is not None:
            self._shared.engines[number] = engine

    def lost(self, number: int) -> None:
        """An engine is lost, with what is on its way to a store or from there."""
        self.network.forget(number)
        if self._shared is not None:
            self._shared.lost(number)

    def gone(self, number: int) -> None:
        """An engine is not there any more, and the one that takes its place has met nobody."""
        self.network.forget(number)
        if self._shared is not None:
            self._shared.gone(number)

    def begin_anew(self, row: int) -> None:
        """A request is tried again: what became of the attempt before is told no more."""
        self.prefills.clear(row)
        self.handovers.table.clear(row)

    def records(self) -> HandoverRecords:
        """What was handed over; to be asked for after the records of all engines."""
        own = (port for port in self.network.ports if port.replica < self._num_engines)
        return HandoverRecords.of(self.prefills, self.handovers.table, own)

    def shared(self) -> SharedRecords | None:
        """What came of the store; to be asked for likewise."""
        return None if self._shared is None else self._shared.records()
