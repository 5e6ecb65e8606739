from benchmarks.mxfp4 import CHUNK, H100_TOKENS_PER_S, fit, prompt_ms
from sim.cluster.front_end import FrontEnd
from sim.specs.hardware import load_gpu
from tests.shared import SHARED, needs_shared


@needs_shared
def test_triton_multiplies_mxfp4_as_fast_as_16_bits() -> None:
    """Says how prompts on an H200 grow, which nothing was fitted to."""
    assert abs(fit(SHARED / "fleet") - 1) < 0.03


def test_a_chunk_takes_the_time_that_a_client_measured() -> None:
    """On an H100, with what the front end takes."""
    gpu = load_gpu("h100-sxm")
    (found_ms,) = prompt_ms(gpu, [CHUNK])
    late_ms = 1e3 * float(FrontEnd.of(gpu.operators.host).late_s(CHUNK, 1))
    assert abs((found_ms + late_ms) * H100_TOKENS_PER_S / CHUNK / 1e3 - 1) < 0.05
