"""What of a prompt's KV moves between two replicas."""

import pytest

from sim.deployment import deploy
from sim.memory.transfers import Load, ReplicaKV
from sim.specs.engine import EngineConfig
from sim.specs.speculative_config import SpeculativeConfig


def kv_of(model: str, tensor_parallel_size: int) -> ReplicaKV:
    deployment = deploy(model, "h200-sxm", EngineConfig(tensor_parallel_size=tensor_parallel_size, block_size=16))
    return ReplicaKV(deployment.plan.kv_groups, tensor_parallel_size)


def test_full_attention_moves_whole_blocks_of_every_layer() -> None:
    """Qwen3-32B: 64 layers, 8 heads of 128, 2 bytes: 262,144 bytes a token, in two regions a layer and block."""
    assert kv_of("Qwen3-32B", 2).pulled(0, 100, sender_gpus=2) == Load(7 * 16 * 262_144, 7 * 64 * 2)


def test_what_is_there_stays() -> None:
    """Of a prompt whose first two blocks are held, the others."""
    assert kv_of("Qwen3-32B", 2).pulled(32, 100, sender_gpus=2) == Load(5 * 16 * 262_144, 5 * 64 * 2)


@pytest.mark.parametrize(("receiver", "sender", "ratio"), [(2, 8, 4), (8, 2, 1), (4, 4, 1)])
def test_heads_spread_over_more_senders_are_read_from_each(receiver: int, sender: int, ratio: int) -> None:
    """The bytes are the same; a receiver of fewer GPUs reads each block from several."""
    load = kv_of("Qwen3-32B", receiver).pulled(0, 16, sender_gpus=sender)
    assert load == Load(16 * 262_144, 64 * 2 * ratio)


def test_a_window_moves_what_the_next_token_looks_at() -> None:
    """gpt-oss: half of 36 layers look back 128 tokens; 8 heads of 64, 2 bytes: 2,048 bytes a layer and token."""
    load = kv_of("gpt-oss-120b", 1).pulled(0, 5000, sender_gpus=1)
    num_full, num_windowed = 313, 313 - (5000 - 127) // 16
    assert load == Load((num_full + num_windowed) * 16 * 18 * 2048, (num_full + num_windowed) * 18 * 2)


def test_a_drafter_of_other_measures_goes_along() -> None:
    """Qwen3-0.6B's 28 layers of 8 heads of 128 behind Qwen2.5-7B's 28 of 4 heads; prediction layers as the model's own."""
    drafts = SpeculativeConfig("draft_model", "Qwen3-0.6B", 3)
    plan = deploy("Qwen2.5-7B", "h200-sxm", EngineConfig(block_size=16, speculative_config=drafts)).plan
    load = ReplicaKV(plan.kv_groups, 1).pulled(0, 32, sender_gpus=1)
    assert load == Load(2 * 28 * 16 * (4 + 8) * 128 * 2 * 2, 2 * (28 + 28) * 2)


def test_a_latent_vector_goes_to_every_gpu() -> None:
    """MLA's latent is held by all ranks, so that eight of them read eight times as much as one would."""
    load = kv_of("DeepSeek-V3", 8).pulled(0, 64, sender_gpus=8)
    assert load == Load(8 * 64 * 61 * 576 * 2, 4 * 61)
