"""What several decodes read in common, from the same KV blocks at the same time: an attention kernel fetches it once for all that are under way together.

vLLM's kernels know nothing of common prefixes (cascade attention is off unless asked for), but blocks that were just read stand in the GPU's L2. Deliberate differences: a prefix's readers are
spread evenly over the decodes of a step; one share holds for all GPUs and lengths; what windows and prompts' chunks read is in common with nobody.
"""

from typing import Final, NamedTuple

from sim.specs.hardware import HardwareProfile
from sim.specs.model import ModelSpec
from sim.specs.stages import Stage, whole
from sim.steptime.operators import decode_attention

IN_STEP: Final = 0.59
"""Of what decodes that are under way together read in common, the share that one finds where another has just read it: by `benchmarks/common_reads.py`, which plays an H100's L2."""
FASTER_FROM_L2: Final = 2.1
"""How many times as fast as from memory vLLM's kernel reads what is all in common: 1,400 us and 664 us for 32 times 4,096 tokens on an A100 (ChunkAttention,
arXiv 2402.15220, table 3, PagedAttn and PagedAttn*, whose tables point at the same blocks)."""


class CommonReads(NamedTuple):
    """How much reading a GPU is spared that works on `num_at_once` decodes at a time.

    Of what these read in common it is the share that finds them `in_step`; of all that is read in common at `most` that one.
    """

    num_at_once: float
    most: float
    in_step: float = IN_STEP

    def num_spared(self, num_decodes: int, num_reads: int, num_tokens: int) -> int:
        """Tokens that so many decodes need not read from memory, which together read `num_tokens` in common `num_reads` times.

        Those of a token's readers that are under way together, if they are spread evenly, read it once.
        """
        num_waves = max(1.0, num_decodes / self.num_at_once)
        num_readers = num_reads / num_tokens
        num_fetches = num_waves * (1.0 - (1.0 - 1.0 / num_waves) ** num_readers)
        return int(min(self.in_step * (num_readers - num_fetches), self.most * num_readers) * num_tokens)


def common_reads(
    model: ModelSpec, gpu: HardwareProfile, tensor_parallel_size: int, kv_dtype_bytes: float, stage: Stage | None = None
) -> CommonReads | None:
    """Of a GPU's layers of full attention, None where there are none: each multiprocessor reads one KV head of one decode at a time.

    What it computes takes as long as before, so that less reading does not go below it.
    """
    for layer in (stage or whole(model)).distinct_layers(model):
        attention = layer.attention.per_rank(tensor_parallel_size)
        if attention.kind != "linear" and attention.window is None and not attention.index_topk:
            work = decode_attention(1, attention, kv_dtype_bytes, gpu)
            least = max(1.0 / FASTER_FROM_L2, work.compute_per_token_s / work.memory_per_token_s)
            num_heads = 1 if attention.kind == "mla" else attention.num_kv_heads
            return CommonReads(gpu.num_sms / num_heads, max(0.0, 1.0 - least))
    return None
