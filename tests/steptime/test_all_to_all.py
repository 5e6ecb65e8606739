"""Dispatch and combine, against the tables that they were fitted to where those are there."""

import numpy as np
import pandas as pd
import pytest

from sim.specs.hardware import load_gpu
from sim.specs.model import BF16, Experts, WeightFormat
from sim.steptime.all_to_all import AllToAll, gathered_s
from sim.units import US
from tests.shared import SHARED, needs_shared

FP8 = WeightFormat("fp8_block", 8.0, 0.002, "fp8")
DEEPSEEK = Experts(256, 8, 7168, 2048, weight=FP8)
H100 = load_gpu("h100-sxm")


@needs_shared
@pytest.mark.parametrize(("num_gpus", "num_nodes"), [(8, 1), (16, 2), (32, 4), (64, 8)])
def test_low_latency_kernels_take_what_was_measured(num_gpus: int, num_nodes: int) -> None:
    """DeepEP on H100s, 1 to 256 tokens a rank: 10 % in the median."""
    table = pd.read_csv(SHARED / "comm" / "aic_deepep_ll.csv.gz")
    rows = table[(table.system == "h100_sxm") & (table.node_num == num_nodes) & (table.num_experts == 256)]
    rows = rows[(rows.hidden_size == 7168) & (rows.num_token <= 256)]
    exchange = AllToAll(DEEPSEEK, num_gpus, H100, "deepep_low_latency")
    measured_s = (rows.dispatch_avg_t_us + rows.combine_avg_t_us).to_numpy() * US
    found_s = [exchange.seconds(float(num_gpus * tokens)) for tokens in rows.num_token.tolist()]
    assert np.median(np.abs(found_s / measured_s - 1)) < 0.12


def test_the_default_gathers_all_tokens_and_adds_them_up_again() -> None:
    """Two collectives of NCCL of all ranks' tokens in bf16."""
    exchange = AllToAll(DEEPSEEK, 8, H100, "allgather_reducescatter")
    assert exchange.seconds(512.0) == 2 * gathered_s(512 * 7168 * 2, 8, H100)


def test_what_each_backend_is_good_at() -> None:
    """On one node few tokens are fastest with low latency, many with high throughput; bf16 experts are sent twice the bytes."""
    few, many = (
        {
            backend: AllToAll(DEEPSEEK, 8, H100, backend).seconds(tokens)
            for backend in ("allgather_reducescatter", "deepep_low_latency", "deepep_high_throughput")
        }
        for tokens in (8.0, 65536.0)
    )
    assert min(few, key=lambda backend: few[backend]) == "deepep_low_latency"
    assert min(many, key=lambda backend: many[backend]) == "deepep_high_throughput"
    wide = AllToAll(Experts(256, 8, 7168, 2048, weight=BF16), 8, H100, "deepep_low_latency")
    assert wide.seconds(4096.0) > AllToAll(DEEPSEEK, 8, H100, "deepep_low_latency").seconds(4096.0)
