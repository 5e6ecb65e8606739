"""What clients of a real vLLM saw while its KV cache was too small for its load, against its simulation.

Recorded from the engine of vLLM 0.32.0 (CPU build, a random Llama, blocks of 128 tokens), in whose clock a step takes 10 ms and 0.4 ms a
token. What is then left to be off is who runs when: admission, preemption, what is computed again, and what a resumed request finds of its
blocks.
"""

import random
from dataclasses import replace

import numpy as np
import pytest

from sim.cluster.clients import Clients
from sim.cluster.simulation import simulate
from sim.cluster.users import Users
from sim.deployment import deploy
from sim.fleet import DeployedFleet
from sim.metrics.latencies import time_per_output_token_s
from sim.specs.engine import EngineConfig
from sim.specs.hardware import load_gpu
from sim.steptime.linear import LinearStepTime
from sim.workload.trace import Trace
from tests.steptime.makers import make_model

RECORDED_CLOCK = LinearStepTime(base_s=0.01, per_token_s=0.0004, per_context_token_s=0.0)
ENGINE = EngineConfig(max_num_seqs=32, max_num_batched_tokens=512, max_model_len=4096, num_gpu_blocks_override=40)


@pytest.mark.parametrize(
    ("num_requests", "clients", "caching", "ttft_ms", "tpot_ms", "num_preemptions"),
    [
        (90, 16, False, 640.035556, 37.747001, 9),
        (110, 32, False, 3238.774545, 37.900100, 12),
        (130, None, False, 1012.827245, 35.344345, 15),
        (110, 32, True, 3115.312727, 36.152271, 11),
        (130, None, True, 770.098015, 33.826816, 14),
    ],
)
def test_clients_of_a_server_short_of_blocks_see_what_was_measured(
    num_requests: int, clients: int | None, caching: bool, ttft_ms: float, tpot_ms: float, num_preemptions: int
) -> None:
    """So many clients that send their next request when their last has ended; without them 6 requests/s by Poisson."""
    engine = replace(ENGINE, enable_prefix_caching=caching)
    served = deploy(make_model(), load_gpu("cpu"), engine, vllm_version="0.32.0")
    seen_by = Clients(Users(clients) if clients else None, open_loop=clients is None, clock="engine")
    plan = DeployedFleet.alike(served, served.engine).plan(lambda _: RECORDED_CLOCK)
    found = seen_by.seen(simulate(load(num_requests, is_open=clients is None), plan, clients=seen_by), plan.front_end)
    requests = found.merged.requests
    assert requests.num_preemptions.sum() == num_preemptions
    assert 1e3 * np.mean(requests.first_token_s - requests.arrival_s) == pytest.approx(ttft_ms, rel=1e-6)
    assert 1e3 * np.mean(time_per_output_token_s(requests)) == pytest.approx(tpot_ms, rel=1e-6)


def load(num_requests: int, *, is_open: bool) -> Trace:
    """As it was sent: prompts of 128 to 384 tokens that share nothing, answers of 32 to 96."""
    lengths, gaps = random.Random(7), random.Random(11)  # noqa: S311 - the draws of the recording
    sizes = [(lengths.randint(128, 384), lengths.randint(32, 96)) for _ in range(num_requests)]
    arrival_s = np.cumsum([0.0, *(gaps.expovariate(6.0) for _ in range(num_requests - 1))])
    return Trace(
        [str(number) for number in range(num_requests)],
        arrival_s if is_open else np.zeros(num_requests),
        np.array([prompt for prompt, _ in sizes]),
        np.array([answer for _, answer in sizes]),
    )
