"""How many kernels vLLM launches around a drafter's layers: `python -m benchmarks.fit_drafting`.

Fitted to TPOT of Llama-3.1-8B-Instruct on an H100 at batch 1 by vLLM 0.8.5 (vllm-project/vllm #16937), given the acceptance length: those once a step, and
those of a pass. Numbers of launches as layers' kernels have them (`host.launch_us`); small ones may be more and take less each. `sim/steptime/drafting.py`
holds the result.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import lsq_linear

from sim.deployment import deploy
from sim.specs.engine import EngineConfig
from sim.specs.hardware import load_gpu
from sim.specs.speculative_config import SpeculativeConfig
from sim.steptime.drafting import OTHER_PASS_LAUNCHES, PASS_LAUNCHES, STEP_LAUNCHES
from sim.steptime.protocol import StepShape

CONTEXT_TOKENS = 600


class Measured(NamedTuple):
    """So many drafts by that method, tokens that a step yields, and ms a token."""

    num_drafts: int
    method: str
    length: float
    tpot_ms: float

    @property
    def step_ms(self) -> float:
        return self.length * self.tpot_ms


MEASURED = (
    Measured(2, "eagle", 2.10, 4.37),
    Measured(4, "eagle", 2.39, 4.48),
    Measured(7, "eagle", 2.47, 5.20),
    Measured(2, "eagle3", 2.36, 4.32),
    Measured(3, "eagle3", 2.79, 4.09),
)


def step_ms(num_drafts: int, method: str) -> float:
    """A step of one request that verifies so many drafts and makes as many."""
    config: dict[str, Any] = {"method": method, "model": "M", "num_speculative_tokens": num_drafts}
    engine = EngineConfig(speculative_config=SpeculativeConfig.parse(config))
    served = deploy("Llama-3.1-8B-Instruct", "h100-sxm", engine, vllm_version="0.8.5")
    return 1e3 * served.step_time.step_s(StepShape(1, CONTEXT_TOKENS, (), 1, num_drafts))


def rows() -> Iterator[tuple[str, float, float]]:
    """By method: launches once a step and a pass."""
    launch_ms = 1e3 * load_gpu("h100-sxm").operators.host.launch_s
    for method in ("eagle", "eagle3"):
        mine = [one for one in MEASURED if one.method == method]
        around = STEP_LAUNCHES, PASS_LAUNCHES.get(method, OTHER_PASS_LAUNCHES)
        counts = np.array([(1, one.num_drafts) for one in mine], dtype=np.float64)
        without_ms = [step_ms(one.num_drafts, method) for one in mine] - counts @ around * launch_ms
        missing = (np.array([one.step_ms for one in mine]) - without_ms) / launch_ms
        found = lsq_linear(counts, missing, bounds=(0, np.inf)).x
        yield method, float(found[0]), float(found[1])


if __name__ == "__main__":
    for method, once, a_pass in rows():
        print(f"{method}: {once:.1f} once a step, {a_pass:.1f} a pass")
