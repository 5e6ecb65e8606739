"""What to change when a model does not fit."""

from dataclasses import replace

from sim.memory.plan import plan_memory
from sim.memory.remedies import remedies
from sim.specs.engine import EngineConfig
from sim.specs.hardware import load_gpu
from tests.memory.shapes import Shape, make_engine, make_model

LLAMA_8B = Shape(4096, 14336, 32, 32, 8, 128, 128256, 131072)


def test_what_fits_needs_no_remedy() -> None:
    """A plan that fits gets no advice."""
    model = make_model(LLAMA_8B)
    assert remedies(model, load_gpu("h100-sxm"), make_engine(model)) == ()


def test_a_context_slightly_too_long_has_several_remedies() -> None:
    """Each remedy alone makes it fit, by the smallest step of its argument, and none but the last takes more GPUs."""
    model, gpu = make_model(LLAMA_8B), load_gpu("rtx-4090")
    longest = plan_memory(model, gpu, make_engine(model, gpu="rtx-4090")).longest_model_len
    engine = make_engine(model, EngineConfig(max_model_len=longest + 16), gpu="rtx-4090")
    found = remedies(model, gpu, engine)
    assert [remedy.argument for remedy in found] == [
        "gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "max_cudagraph_capture_size", "max_model_len",
        "kv_cache_dtype",
    ]  # fmt: skip
    assert all(remedy.plan.feasible for remedy in found)
    assert (found[0].value, found[1].value, found[3].value, found[4].value) == (0.93, 128, 256, longest)
    assert not plan_memory(model, gpu, replace(engine, gpu_memory_utilization=0.92)).feasible


def test_a_model_far_too_large_needs_more_gpus() -> None:
    """70B parameters in bf16 fit on four linked H100s, and nothing less helps."""
    model = make_model(replace(LLAMA_8B, hidden=8192, intermediate=28672, layers=80, heads=64))
    found = remedies(model, load_gpu("h100-sxm"), make_engine(model))
    assert [(remedy.argument, remedy.value) for remedy in found] == [("tensor_parallel_size", 4)]


def test_the_designs_graphs_have_their_own_remedies() -> None:
    """By its formula a model of 1.3 billion parameters fits an L4 only without its larger graphs, in any version."""
    model, gpu = make_model(replace(LLAMA_8B, hidden=2048, intermediate=8192, layers=16, vocab=32000)), load_gpu("l4")
    engine = make_engine(model, EngineConfig(max_model_len=8192), gpu="l4", vllm_version="0.19.0")
    found = remedies(model, gpu, engine, graph_memory="design")
    assert remedies(model, gpu, engine) == ()
    assert "max_cudagraph_capture_size" in {remedy.argument for remedy in found}
    assert all(remedy.plan.feasible for remedy in found)
