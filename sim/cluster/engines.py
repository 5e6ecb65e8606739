"""The engine of a replica: one that leaps, or one that walks in every mode beyond the plain one, where windows or states stay cached in places, and in lock step."""

from collections.abc import Callable, Mapping

from sim.cluster.fleet_plan import Pool
from sim.cluster.lock_step import RankCore
from sim.engine.core import EngineCore
from sim.engine.recorder import Recorder
from sim.engine.replica_rows import Outcomes
from sim.engine.step_log import LogRow, StepLogger
from sim.engine.walking.core import WalkingCore
from sim.engine.walking.modes import PLAIN
from sim.engine.walking.rank import TransferringRank, WalkingRank
from sim.engine.walking.recorder import WalkRecorder
from sim.engine.walking.staged_rank import StagedRank
from sim.engine.walking.step_log import WalkLogger
from sim.engine.walking.storing_rank import StoringRank
from sim.engine.walking.tiered_rank import TieredRank

StepLog = Callable[[LogRow], None]


def of_replica(step_log: StepLog | None, number: int) -> StepLog | None:
    """What takes the rows of one replica among several."""
    return named(step_log, {"replica": number})


def named(step_log: StepLog | None, names: Mapping[str, int]) -> StepLog | None:
    """What takes the rows of an engine that has these names."""
    return None if step_log is None else lambda row: step_log({**names, **row})


def engine_core(
    pool: Pool, table: Outcomes, number: int, *, start_s: float, num_keys: int, step_log: StepLog | None = None
) -> RankCore:
    """Of a replica of that number, which writes its requests into the table."""
    config, step_time, modes = pool.config, pool.step_time, pool.modes
    if modes == PLAIN and not config.caches_with_gaps:
        log = StepLogger(step_log) if step_log else None
        return EngineCore(config, step_time, Recorder(table, number), start_s=start_s, num_keys=num_keys, log=log)
    return _kind(pool)(
        config,
        step_time,
        WalkRecorder(table, number, speculates=modes.speculation is not None),
        start_s=start_s,
        modes=modes,
        num_keys=num_keys,
        log=WalkLogger(step_log) if step_log else None,
    )


def _kind(pool: Pool) -> type[WalkingCore]:
    """Of an engine that walks."""
    if pool.server is None or pool.server.lock_step is None:
        return WalkingCore
    if pool.modes.num_stages > 1:
        return StagedRank
    modes = pool.modes
    if modes.store is not None:
        return StoringRank
    return TransferringRank if modes.kv_transfer else TieredRank if modes.offload else WalkingRank
