"""The memory plan against worked examples, vLLM's logs, and the laws that any plan obeys."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.memory_points import logged_blocks
from sim.memory.plan import MemoryPlan, plan_memory
from sim.specs.engine import EngineConfig
from sim.specs.hardware import load_gpu
from sim.specs.model import BF16, ModelSpec, WeightFormat
from sim.specs.models import load_model
from sim.units import GIB
from tests.memory.shapes import Shape, make_engine, make_model
from tests.shared import needs_shared

LLAMA_8B = Shape(4096, 14336, 32, 32, 8, 128, 128256, 131072)
KEYS = {
    "num_parameters", "weights_bytes", "activation_bytes", "cuda_graph_bytes", "non_torch_bytes", "kv_cache_bytes",
    "num_gpu_blocks", "kv_cache_tokens", "max_concurrency", "feasible", "reason",
}  # fmt: skip


@cache
def llama_8b() -> ModelSpec:
    return make_model(LLAMA_8B)


def plan(
    config: EngineConfig | None = None,
    *,
    model: ModelSpec | None = None,
    gpu: str = "h100-sxm",
    vllm_version: str | None = None,
) -> MemoryPlan:
    model = model or llama_8b()
    return plan_memory(model, load_gpu(gpu), make_engine(model, config, gpu=gpu, vllm_version=vllm_version))


def test_llama_8b_on_an_h100_with_vllm_0_15() -> None:
    """Weights 14.96 GiB and a rotary table of 32 MiB; with 128 sequences and 2,048 tokens about 55 GiB of KV cache remain."""
    planned = plan(
        EngineConfig(max_num_seqs=128, max_num_batched_tokens=2048, gpu_memory_utilization=0.9), vllm_version="0.15.1"
    )
    assert planned.weights_bytes == 2 * 8_030_261_248 + 131_072 * 128 * 2
    assert planned.requested_bytes == pytest.approx(0.9 * 79.19 * GIB)
    assert planned.num_gpu_blocks == pytest.approx(28_300, rel=0.01)
    assert planned.kv_cache_bytes == planned.num_gpu_blocks * 2 * 1024**2
    assert planned.kv_cache_tokens == planned.num_gpu_blocks * 16
    assert planned.feasible


def test_the_json_has_the_stable_keys() -> None:
    """Whoever reads `memory --json` finds every documented key."""
    data = plan().to_json()
    assert data.keys() >= KEYS
    assert (data["feasible"], data["reason"]) == (True, None)


@needs_shared
def test_block_counts_are_those_that_vllm_logged() -> None:
    """Over all logged starts the block count is off by at most 1 % in the median and 3 % at worst, Llama-4-Scout apart."""
    errors = sorted(
        abs(plan_memory(start.model, start.gpu, start.engine).num_gpu_blocks / start.num_gpu_blocks - 1)
        for start in logged_blocks()
        if start.is_explained
    )
    assert len(errors) == 7
    assert errors[len(errors) // 2] < 0.01
    assert errors[-1] < 0.03


@pytest.mark.parametrize(
    ("version", "changes"), [("0.17.1", False), ("0.19.1", False), ("0.21.0", True), ("0.33.0", True)]
)
def test_eager_mode_frees_kv_blocks_since_0_21_only(version: str, *, changes: bool) -> None:
    """Statement 41: only where the estimate for graphs is subtracted does enforce_eager change the number of blocks."""
    graphs = plan(vllm_version=version)
    eager = plan(EngineConfig(enforce_eager=True), vllm_version=version)
    assert (eager.num_gpu_blocks > graphs.num_gpu_blocks) is changes
    assert (eager.cuda_graph_bytes, eager.cuda_graph_estimate_bytes) == (0, 0)
    assert graphs.cuda_graph_bytes > 0
    assert (graphs.cuda_graph_estimate_bytes > 0) is changes


def test_an_older_vllm_profiles_a_larger_peak() -> None:
    """At the default 1,024 sequences and 8,192 tokens, 0.15 logs 5.64 GiB for Qwen3-14B and 0.17 logs 2.23 GiB."""
    model = load_model("Qwen/Qwen3-14B")
    assert plan(model=model, vllm_version="0.15.1").activation_bytes / GIB == pytest.approx(5.64, rel=0.02)
    assert plan(model=model, vllm_version="0.17.1").activation_bytes / GIB == pytest.approx(2.23, rel=0.02)


def test_a_model_too_large_says_what_is_missing() -> None:
    """A 70B model in bf16 on one H100 is refused with its numbers, and no block is promised."""
    planned = plan(model=make_model(replace(LLAMA_8B, hidden=8192, intermediate=28672, layers=80, heads=64)))
    assert not planned.feasible
    assert planned.num_gpu_blocks == planned.kv_cache_bytes == planned.kv_cache_tokens == 0
    assert planned.reason is not None
    assert "weights (131.45 GiB)" in planned.reason
    assert "72.85 GiB" in planned.reason


def test_a_context_too_long_says_which_one_fits() -> None:
    """Where one request does not fit, the reason names the longest that does, and that one is feasible."""
    planned = plan(gpu="rtx-4090")
    assert not planned.feasible
    assert f"lower max_model_len to {planned.longest_model_len:,}" in str(planned.reason)
    assert plan(EngineConfig(max_model_len=planned.longest_model_len), gpu="rtx-4090").feasible
    assert not plan(EngineConfig(max_model_len=planned.longest_model_len + 1), gpu="rtx-4090").feasible


def test_an_automatic_context_shrinks_to_fit() -> None:
    """max_model_len "auto" becomes the longest context that fits, the model's own where all of it does."""
    small, large = plan(EngineConfig(max_model_len="auto"), gpu="rtx-4090"), plan(EngineConfig(max_model_len="auto"))
    assert small.feasible
    assert small.max_model_len == small.longest_model_len < 131_072
    assert large.max_model_len == 131_072


def test_nothing_left_is_refused_in_words() -> None:
    """A cache of a block or two holds no request: the null block is one of them."""
    planned = plan(EngineConfig(kv_cache_memory_bytes=2 * 1024**2))
    assert (planned.num_gpu_blocks, planned.longest_model_len) == (1, 0)
    assert "too few for any request" in str(planned.reason)
    assert not plan(EngineConfig(kv_cache_memory_bytes=2 * 1024**2, max_model_len="auto")).feasible


def test_an_override_replaces_the_block_count() -> None:
    """num_gpu_blocks_override is taken as it is, refused only where one request or the GPU cannot hold it."""
    assert plan(EngineConfig(num_gpu_blocks_override=9000)).num_gpu_blocks == 9000
    assert "lower max_model_len to 7,984" in str(
        plan(EngineConfig(num_gpu_blocks_override=500, max_model_len=8192)).reason
    )
    assert "more than the 79.19 GiB" in str(plan(EngineConfig(num_gpu_blocks_override=99_999)).reason)


def test_given_cache_bytes_replace_the_utilization() -> None:
    """kv_cache_memory_bytes sets the cache whatever gpu_memory_utilization leaves."""
    planned = plan(EngineConfig(kv_cache_memory_bytes=20 * GIB, gpu_memory_utilization=0.1))
    assert (planned.available_kv_cache_bytes, planned.num_gpu_blocks) == (20 * GIB, 10_240)
    assert planned.feasible


def test_sliding_windows_leave_room_for_more_requests() -> None:
    """gemma3-27b's pattern: seven groups share one pool, and a request needs less than a block a group and token block."""
    planned = plan(model=make_model(Shape(5376, 21504, 62, 32, 16, 128, 262208, 131072, num_sliding=52, window=1024)))
    assert [group.num_layers for group in planned.kv_groups] == [9, 9, 9, 9, 8, 8, 10]
    assert planned.max_concurrency > planned.num_gpu_blocks / (7 * 131_072 / 16)


def test_the_logged_size_of_a_hybrid_cache_changed_with_0_21() -> None:
    """Before, blocks shared out over the groups; since, tokens of requests at full length. Uniform models log the same."""
    hybrid = make_model(Shape(5376, 21504, 62, 32, 16, 128, 262208, 131072, num_sliding=52, window=1024))
    before, now = (plan(model=hybrid, vllm_version=version) for version in ("0.19.1", "0.21.0"))
    assert before.kv_cache_tokens == before.num_gpu_blocks // 7 * 16
    assert now.kv_cache_tokens == int(now.max_concurrency * 131_072) > now.num_gpu_blocks // 7 * 16


def test_large_communication_buffers_need_linked_gpus() -> None:
    """On two H100s NCCL and all-reduce buffers take 2 GiB; two RTX 4090s have no such, but more than one H100 alone."""
    two = EngineConfig(tensor_parallel_size=2)
    linked, unlinked = plan(two, vllm_version="0.19.0"), plan(two, gpu="rtx-4090", vllm_version="0.19.0")
    assert linked.non_torch_bytes / GIB == pytest.approx(2.14, abs=0.01)
    assert unlinked.non_torch_bytes == plan(gpu="rtx-4090", vllm_version="0.19.0").non_torch_bytes
    assert plan(vllm_version="0.19.0").non_torch_bytes < unlinked.non_torch_bytes < GIB


def test_fp8_weights_and_cache_are_half() -> None:
    """One-byte weights halve what is split of them, a one-byte cache the bytes of a block."""
    bf16, fp8 = plan(), plan(model=in_format(WeightFormat("fp8", 8, compute="fp8")))
    matrices = 2 * 8_030_261_248 - 4 * 128_256 * 4096 - 2 * (65 * 4096)
    assert bf16.weights_bytes - fp8.weights_bytes == matrices // 2
    cached = plan(EngineConfig(kv_cache_dtype="fp8"))
    assert cached.num_gpu_blocks == pytest.approx(2 * bf16.num_gpu_blocks, abs=1)


def in_format(weight: WeightFormat) -> ModelSpec:
    """Llama-3.1-8B with the matrices of its layers in that format."""
    layers = tuple(
        replace(layer, linears=tuple(replace(linear, weight=weight) for linear in layer.linears))
        for layer in llama_8b().layers
    )
    assert llama_8b().layers[0].linears[0].weight == BF16
    return replace(llama_8b(), layers=layers)


def test_ledger_lines_add_up_to_the_plan() -> None:
    """Lines of a heading sum to the plan's figure, each with a formula and a source."""
    planned = plan(model=load_model("meta-llama/Llama-4-Scout-17B-16E-Instruct"), gpu="b300-sxm")
    sums = {line.group: 0 for line in planned.ledger}
    for line in planned.ledger:
        sums[line.group] += line.num_bytes
        assert line.formula
        assert line.source
    assert sums == {
        "requested": planned.requested_bytes,
        "weights": planned.weights_bytes,
        "activations": planned.activation_bytes,
        "non-torch": planned.non_torch_bytes,
        "CUDA graphs": planned.cuda_graph_estimate_bytes,
        "CUDA graphs taken": planned.cuda_graph_bytes,
        "KV cache": planned.kv_cache_bytes,
    }


def test_llama_4_keeps_ten_million_rotary_positions() -> None:
    """Its table of 10,485,760 positions takes 2.5 GiB a GPU, however short max_model_len is."""
    model = load_model("meta-llama/Llama-4-Scout-17B-16E-Instruct")
    planned = plan(EngineConfig(max_model_len=4096, tensor_parallel_size=4), model=model)
    tables = [line.num_bytes for line in planned.ledger if line.name == "rotary tables"]
    assert tables == [int(2.5 * GIB)]


def test_sparse_mla_keeps_an_indexers_key_beside_the_latent_and_rotates_a_part() -> None:
    """A token takes 576 numbers in bf16 and 132 bytes a layer; of each head 64 numbers are rotated, by a table in fp32."""
    model = load_model("deepseek-ai/DeepSeek-V3.2")
    planned = plan(EngineConfig(max_model_len=4096, tensor_parallel_size=8), model=model)
    (group,) = planned.kv_groups
    tables = [line.num_bytes for line in planned.ledger if line.name == "rotary tables"]
    assert group.page_bytes == group.block_size * (576 * 2 + 132)
    assert tables == [163840 * 64 * 4]


@given(st.floats(0.3, 0.98), st.floats(0.0, 0.02), st.sampled_from(["0.15.1", "0.19.0", "0.33.0"]))
def test_more_utilization_never_means_fewer_blocks(utilization: float, more: float, version: str) -> None:
    """Blocks never decrease as gpu_memory_utilization grows, and never take more than it allows."""
    plans = [
        plan(EngineConfig(gpu_memory_utilization=u), vllm_version=version) for u in (utilization, utilization + more)
    ]
    assert plans[0].num_gpu_blocks <= plans[1].num_gpu_blocks
    for planned in plans:
        rest = planned.weights_bytes + planned.activation_bytes + planned.non_torch_bytes
        used = rest + planned.cuda_graph_estimate_bytes + planned.kv_cache_bytes
        assert used <= planned.requested_bytes or not planned.feasible


@given(
    st.sampled_from(["meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V2-Lite"]),
    st.sampled_from([1, 2, 4]),
)
def test_more_gpus_never_load_more_weights_each(name: str, tensor_parallel_size: int) -> None:
    """Doubling TP never increases the weights of a GPU, nor its activation peak."""
    fewer, more = (
        plan(EngineConfig(tensor_parallel_size=n), model=load_model(name))
        for n in (tensor_parallel_size, 2 * tensor_parallel_size)
    )
    assert more.weights_bytes <= fewer.weights_bytes
    assert more.activation_bytes <= fewer.activation_bytes


@given(st.integers(16, 1024), st.integers(1024, 16384))
def test_larger_batches_never_mean_more_blocks(max_num_seqs: int, max_num_batched_tokens: int) -> None:
    """Room for more sequences or tokens a step is taken from the KV cache."""
    config = EngineConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens)
    blocks = plan(config).num_gpu_blocks
    assert plan(replace(config, max_num_seqs=max_num_seqs + 8, max_num_batched_tokens=16384)).num_gpu_blocks <= blocks
