"""The share of time in which a replica is ready, of a machine that fails and comes back after exponential times."""

from math import exp

import numpy as np
import pytest

from sim.cluster.dynamics import Dynamics
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.simulation import simulate
from sim.metrics.lives import replicas_over_time
from sim.workload.trace import Trace
from tests.configs import scheduler_config
from tests.search.makers import STEPS

MTBF_S, MTTR_S, START_UP_S, NUM_REPLICAS, SPAN_S = 1000.0, 100.0, 50.0, 4, 200_000.0


def test_ready_time_follows_from_mtbf_mttr_and_start_up() -> None:
    """Of a cycle of mean MTBF + MTTR it is ready E[max(0, X - start-up)] = MTBF exp(-start-up / MTBF).

    Some 180 cycles of each of four replicas: the share has a standard error of less than 1 %.
    """
    count = 2000
    trace = Trace(
        request_id=tuple(map(str, range(count))),
        arrival_s=np.linspace(0, SPAN_S, count),
        prompt_tokens=np.full(count, 10),
        output_tokens=np.full(count, 2),
    )
    config = scheduler_config(max_num_seqs=8, max_num_batched_tokens=256, max_model_len=2048, num_gpu_blocks=300)
    drawn = Dynamics.parse({"faults": [{"mtbf_s": MTBF_S, "mttr_s": MTTR_S}]})
    plan = FleetPlan.alike(config, STEPS, NUM_REPLICAS, dynamics=drawn, start_up_s=START_UP_S)
    changes = replicas_over_time(simulate(trace, plan).lives)
    times = np.array([change["at_s"] for change in changes] + [SPAN_S]).clip(max=SPAN_S)
    ready_s = sum(change["ready"] * span_s for change, span_s in zip(changes, np.diff(times).tolist(), strict=True))
    expected = MTBF_S * exp(-START_UP_S / MTBF_S) / (MTBF_S + MTTR_S)
    assert ready_s / (NUM_REPLICAS * SPAN_S) == pytest.approx(expected, abs=0.025)
