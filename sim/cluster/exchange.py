"""What engines share that hand KV over: the network between them, and the books of what was handed over."""

from collections.abc import Sequence
from dataclasses import replace

import simpy

from sim.cluster.engines import StepLog, engine_core
from sim.cluster.fleet_plan import Disaggregation, Pool
from sim.cluster.handover_records import HandoverRecords
from sim.cluster.handovers import Engine, Handovers, Side
from sim.cluster.lock_step import RankCore
from sim.cluster.network import Network
from sim.engine.request_source import RequestSource
from sim.engine.request_table import RequestTable
from sim.engine.walking.modes import POLLING_S
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
    ) -> None:
        """`pools` are those of the replicas, by number."""
        policy = disaggregation.kv_load_failure_policy
        self.network = Network(env, disaggregation.costs, [pool.kv.num_gpus for pool in pools])
        self.handovers = Handovers(
            self.network,
            [pool.kv for pool in pools],
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
        if pool.role != "both":
            peer = Side(self.handovers, number)
            modes = replace(pool.modes, kv_transfer=self._nixl, peer=peer, idle_sleep_s=self._idle_sleep_s)
            pool = pool._replace(modes=modes)
        served = self.prefills if pool.role == "prefill" else table
        return engine_core(pool, served, number, start_s=start_s, num_keys=num_keys, step_log=step_log)

    def connect(self, engines: Sequence[Engine]) -> None:
        """These are all there are, by number."""
        self.handovers.engines = dict(enumerate(engines))

    def begin_anew(self, row: int) -> None:
        """A request is tried again: what became of the attempt before is told no more."""
        self.prefills.clear(row)
        self.handovers.table.clear(row)

    def records(self) -> HandoverRecords:
        """What was handed over; to be asked for after the records of all engines."""
        return HandoverRecords.of(self.prefills, self.handovers.table, self.network.ports)
