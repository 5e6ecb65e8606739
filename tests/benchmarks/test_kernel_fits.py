"""What was fitted to kernels agrees with what is known of them, and stands in the profiles."""

import json
from typing import Any

import pytest

from benchmarks.fit_clocks import OUTPUT as CLOCKS
from benchmarks.fit_kernels import OUTPUT
from sim.specs.hardware import load_gpu

FITS: dict[str, dict[str, Any]] = json.loads(OUTPUT.read_text(encoding="utf-8"))
SLOWED: dict[str, Any] = json.loads(CLOCKS.read_text(encoding="utf-8"))["b200-sxm"]


@pytest.mark.parametrize("operator", ["experts bf16", "experts fp8_block", "experts nvfp4"])
def test_kernels_of_tensorrt_llm_read_slower_in_large_tiles(operator: str) -> None:
    """B200's tables say so, each by itself."""
    assert 0.1 < FITS["B200"][operator]["large_tile_reads"] < 0.4


@pytest.mark.parametrize("operator", ["gemm bf16", "gemm fp8", "experts bf16", "experts fp8_block", "experts int4"])
def test_boards_of_one_chip_multiply_alike(operator: str) -> None:
    """H100 and H200 read memory at rates of their own."""
    h100, h200 = FITS["H100"][operator], FITS["H200"][operator]
    assert h100["compute_efficiency"] == h200["compute_efficiency"]
    assert h100["memory_efficiency"] != h200["memory_efficiency"]


def test_b200_multiplies_at_the_rate_that_its_power_allows() -> None:
    """B300, of the same chip and table, has the table's."""
    share, alone = SLOWED["share"], FITS["B200"]
    assert 0.7 < share < 1
    b200, b300 = (load_gpu(name).operators for name in ("b200-sxm", "b300-sxm"))
    for gpu, rate in ((b200, share), (b300, 1)):
        assert gpu.gemm["fp8"].compute_efficiency == pytest.approx(
            rate * alone["gemm fp8"]["compute_efficiency"], abs=1e-3
        )
        assert gpu.prefill_attention.compute_efficiency == pytest.approx(
            rate * alone["prefill attention"]["compute_efficiency"], abs=1e-3
        )
        assert gpu.prefill_attention_fp8.compute_efficiency == pytest.approx(
            rate * alone["prefill attention fp8"]["compute_efficiency"], abs=1e-3
        )
        assert gpu.decode_attention.compute_efficiency == alone["decode attention"]["compute_efficiency"]
