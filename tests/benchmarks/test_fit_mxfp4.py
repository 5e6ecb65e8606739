from benchmarks.fit_mxfp4 import CHUNK, H100_TOKENS_PER_S, fit, prompt_ms
from sim.specs.hardware import load_gpu
from sim.steptime.operators import MXFP4_BY_TRITON
from tests.shared import SHARED, needs_shared


@needs_shared
def test_the_share_is_what_the_script_fits() -> None:
    assert abs(fit(SHARED / "fleet") - MXFP4_BY_TRITON) < 0.01


def test_another_gpu_computes_a_chunk_in_the_time_that_was_measured() -> None:
    """By a client, with what it and the gateway take; nothing was fitted to it."""
    (found,) = prompt_ms(load_gpu("h100-sxm"), [CHUNK])
    assert abs(found * H100_TOKENS_PER_S / CHUNK / 1e3 - 1) < 0.1
