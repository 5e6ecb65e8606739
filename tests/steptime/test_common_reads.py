"""How much reading a GPU is spared of what decodes have in common."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.specs.hardware import load_gpu
from sim.specs.models import load_model
from sim.steptime.common_reads import CommonReads, common_reads

H100 = load_gpu("h100-sxm")
OF_TWO_H100 = CommonReads(num_at_once=33.0, most=0.5, in_step=0.6)


@pytest.mark.parametrize(
    ("num_decodes", "num_reads", "num_tokens", "spared"),
    [
        pytest.param(20, 2 * 6000, 6000, 3600, id="two of twenty who are all under way: one of two reads, if they keep step"),
        pytest.param(20, 10 * 6000, 6000, 30000, id="ten of them: the L2 is not faster than twice the memory"),
        pytest.param(66, 2 * 6000, 6000, 1800, id="two waves: half of the pairs are in one"),
        pytest.param(66, 10 * 6000, 6000, 28807, id="ten in two waves: 1.998 reads"),
    ],
)  # fmt: skip
def test_those_that_are_under_way_together_read_once(
    num_decodes: int, num_reads: int, num_tokens: int, spared: int
) -> None:
    assert OF_TWO_H100.num_spared(num_decodes, num_reads, num_tokens) == spared


@given(
    num_decodes=st.integers(2, 1000),
    num_readers=st.integers(2, 100),
    num_tokens=st.integers(16, 100_000),
    num_at_once=st.floats(1.0, 200.0),
    most=st.floats(0.0, 0.6),
)
def test_everything_is_read_at_least_once_and_by_more_the_less_at_once(
    num_decodes: int, num_readers: int, num_tokens: int, num_at_once: float, most: float
) -> None:
    def spared(of_gpu: CommonReads, readers: int = num_readers) -> int:
        return of_gpu.num_spared(num_decodes, readers * num_tokens, num_tokens)

    of_gpu = CommonReads(num_at_once, most)
    assert 0 <= spared(of_gpu) <= min((num_readers - 1) * num_tokens, most * num_readers * num_tokens)
    assert spared(of_gpu) <= spared(of_gpu, num_readers + 1)
    assert spared(of_gpu) <= spared(of_gpu._replace(num_at_once=2 * num_at_once))


@pytest.mark.parametrize(
    ("model", "tensor_parallel_size", "num_at_once"),
    [
        pytest.param("Qwen3-32B", 2, 33.0, id="132 multiprocessors over 4 heads"),
        pytest.param("Qwen3-32B", 8, 132.0, id="one head"),
        pytest.param("gpt-oss-20b", 1, 16.5, id="its layers of full attention"),
        pytest.param("DeepSeek-V3.1", 8, 132.0, id="one latent for all heads"),
    ],
)
def test_a_multiprocessor_reads_one_head_of_one_decode(
    model: str, tensor_parallel_size: int, num_at_once: float
) -> None:
    found = common_reads(load_model(model), H100, tensor_parallel_size, 2.0)
    assert found is not None
    assert found.num_at_once == num_at_once


def test_what_is_computed_bounds_what_is_spared() -> None:
    """128 heads for one latent compute about as long as they read it; 16 do not."""
    of_all, of_some = (common_reads(load_model("DeepSeek-V3.1"), H100, size, 2.0) for size in (1, 8))
    assert of_all is not None
    assert of_some is not None
    assert of_all.most < 0.3 < of_some.most == pytest.approx(1 - 1 / 2.1)
