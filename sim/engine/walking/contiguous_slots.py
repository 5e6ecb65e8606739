"""A what-if: KV caches before paged attention, a stretch of the longest length for each request. No vLLM does this."""

from sim.engine.walking.slots import Slots


class ContiguousSlots(Slots):
    """Each request holds blocks for `max_model_len` tokens from its admission on, whatever it comes to use."""

    def _num_blocks(self, num_tokens: int) -> int:
        del num_tokens
        return -(-self._max_model_len // self._block_size)
