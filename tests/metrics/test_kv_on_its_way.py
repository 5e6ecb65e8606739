"""Who waits for KV that is on its way is not kept waiting by the engine."""

import numpy as np
import pandas as pd

import sim
from sim.metrics.kv_on_its_way import OnItsWay

PAIR = [{"name": "prompts", "role": "prefill"}, {"name": "answers", "role": "decode"}]


def test_what_has_come_is_seen_by_the_pass_after_the_next() -> None:
    """Asked for with the pass at 1 s and come at 2.5 s: it is told of with the pass at 3 s, and may run in the one at 4 s."""
    way = OnItsWay(np.array([1.0, 1.0]), np.array([2.5, 9.0]))
    assert way.num_requests(np.array([0.0, 1.0, 2.0, 3.0, 4.0])).tolist() == [0, 2, 2, 2, 1]
    assert OnItsWay().num_requests(np.arange(3.0)).tolist() == [0, 0, 0]


def test_a_slow_link_is_no_lack_of_space() -> None:
    """Pulls of a second; where blocks are short, requests do wait for space."""
    trace = pd.DataFrame({"arrival_s": np.arange(20) * 0.2, "prompt_tokens": 2000, "output_tokens": 100})

    def waits(**engine: int) -> float:
        pools = [PAIR[0], PAIR[1] | {"engine": engine}]
        fleet = {"pools": pools, "transfer": {"bandwidth_gb_s": 0.5}}
        found = sim.simulate("Llama-3.1-8B", "h100-sxm", trace, fleet=fleet, intervals=False)
        limits = found.summary["limits"]["queued"]["kv_space"]
        return float(limits)

    assert waits() < 0.02
    assert waits(num_gpu_blocks_override=150, max_model_len=2304) > 0.2
