"""What ranks say to each other, on one node and over several."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.specs.hardware import load_gpu
from sim.steptime.links import all_gather_s, all_reduce_s, message_s, nodes_of_experts
from sim.units import US
from tests.steptime.makers import FITS, h100, make_engine, make_model


def test_all_reduce_by_hand() -> None:
    """16 MiB over 4 GPUs: 4.2 us, 3 x 0.17 us, and 1.5 times the message at 0.593 of 450 GB/s."""
    expected = 4.176 * US + 3 * 0.169 * US + 1.5 * 2**24 / (450e9 * 0.593)
    assert all_reduce_s(float(2**24), 4, h100()) == pytest.approx(expected)
    assert all_gather_s(float(2**24), 4, h100()) < expected


def test_an_all_reduce_over_two_nodes() -> None:
    """Within each node as ever; then each GPU exchanges an eighth, in halves, with its like on the other, there and back."""
    gpu, num_bytes = h100(), 2.0**24
    exchanged_s = 20 * US + num_bytes / 8 / 2 / (50e9 * 0.7)
    assert all_reduce_s(num_bytes, 16, gpu) == pytest.approx(all_reduce_s(num_bytes, 8, gpu) + 2 * exchanged_s)
    gathered_s = 20 * US + num_bytes / 16 / (50e9 * 0.7)
    assert all_gather_s(num_bytes, 16, gpu) == pytest.approx(all_gather_s(num_bytes, 8, gpu) + gathered_s)


@pytest.mark.parametrize(
    ("ranks", "stages", "engines", "nodes"),
    [
        (1, 1, 8, (1, 8)),
        (2, 1, 8, (2, 8)),
        (1, 2, 4, (1, 4)),  # four engines of two GPUs on a node
        (1, 2, 8, (2, 4)),  # on each of two nodes four GPUs of a stage
        (2, 3, 2, (2, 2)),  # an engine of six GPUs a node
        (8, 2, 2, (2, 8)),  # a stage a node
        (4, 4, 2, (2, 4)),  # two stages a node
        (16, 2, 2, (4, 8)),  # two nodes a stage
    ],
)
def test_where_those_lie_that_share_the_experts_of_a_stage(
    ranks: int, stages: int, engines: int, nodes: tuple[int, int]
) -> None:
    """How many nodes of eight GPUs they take, and how many of each: engine behind engine, stage behind stage."""
    engine = make_engine(
        make_model(), tensor_parallel_size=ranks, pipeline_parallel_size=stages, data_parallel_size=engines
    )
    assert nodes_of_experts(engine, h100()) == nodes


def test_a_domain_larger_than_a_node_needs_no_network() -> None:
    """16 GPUs of an NVL72 rack are on four trays and one NVLink."""
    gpu = load_gpu("gb200")
    fit, num_bytes = gpu.operators.all_reduce, 2.0**24
    wire_s = 2 * 15 / 16 * num_bytes / (gpu.link_bytes_per_s * fit.link_efficiency)
    factor = dict(dict(fit.by_bytes)[8])[num_bytes]
    assert all_reduce_s(num_bytes, 16, gpu) == pytest.approx(factor * (fit.base_s + 15 * fit.per_gpu_s + wire_s))


MEASURED = ((2, ((1024.0, 1.0), (4096.0, 2.0))), (8, ((1024.0, 1.0), (4096.0, 8.0))))


def test_a_sum_takes_what_was_measured_at_its_size() -> None:
    """Half-way in time between two sizes; the middle of logarithms between 2 and 8 GPUs; beyond either end as there."""
    gpu = replace(h100(), operators=replace(FITS, all_reduce=replace(FITS.all_reduce, by_bytes=MEASURED)))
    formula = {
        (num, of): all_reduce_s(float(num), of, h100()) for num in (512, 1024, 2560, 4096, 8192) for of in (2, 4, 8, 16)
    }
    for of, largest in ((2, 2.0), (4, 4.0), (8, 8.0)):
        assert all_reduce_s(4096.0, of, gpu) == pytest.approx(largest * formula[4096, of])
        assert all_reduce_s(8192.0, of, gpu) == pytest.approx(largest * formula[8192, of])
        assert all_reduce_s(512.0, of, gpu) == pytest.approx(formula[512, of])
    between = (formula[1024, 2] + 2 * formula[4096, 2]) / 2
    assert all_reduce_s(2560.0, 2, gpu) == pytest.approx(between)


@pytest.mark.parametrize("name", ["a100", "h100", "h200", "b200", "l40s", "rtx-pro-6000"])
def test_larger_sums_never_take_less(name: str) -> None:
    """As they are in the built-in profiles, from 100 bytes to 1 GB, but for what three digits of a factor round off."""
    gpu, sizes = load_gpu(name), [100 * 1.3**step for step in range(62)]
    for num_gpus in (2, 4, 8):
        times = [all_reduce_s(size, num_gpus, gpu) for size in sizes]
        assert all(more > 0.998 * less for less, more in pairwise(times))


@given(num_bytes=st.floats(0, 1e9), num_nodes=st.integers(1, 8))
def test_more_nodes_take_longer(num_bytes: float, num_nodes: int) -> None:
    """Whatever the message; and a network without latency or limit would add nothing."""
    fewer, more = (all_reduce_s(num_bytes, 8 * nodes, h100()) for nodes in (num_nodes, num_nodes + 1))
    assert more > fewer
    assert fewer >= all_reduce_s(num_bytes, 8, h100())


def test_a_message_to_the_next_gpu() -> None:
    """Base and bytes at the fitted share of the link."""
    assert message_s(1e6, 0, 1, h100()) == pytest.approx(7.6 * US + 1e6 / (450e9 * 0.8))
    assert message_s(1e6, 7, 8, h100()) == pytest.approx(20 * US + 1e6 / (50e9 * 0.7))
    assert FITS.messages.link.basis == "fitted"
