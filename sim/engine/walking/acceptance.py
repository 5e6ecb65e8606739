"""How drafts fare, drawn beforehand: by request, whatever the order in which requests are scheduled."""

import numpy as np

from sim.engine.records import Floats
from sim.engine.request import Request

NUM_DRAWN = 1 << 20
SPREAD = 0x9E3779B1  # 2^32 over the golden ratio: consecutive rows begin far apart (Knuth, Multiplicative Hashing)


class DrawnAcceptance:
    """Each verification accepts drafts independently of all others, the first j of them with probability `rates[j - 1]`.

    Where the trace has `lengths`, a request has its own: the mean of what its verifications yield, with the least variance.
    What is drawn depends on `seed`, on the request's row in the trace and on the number of the verification alone. Requests
    read one table of a million draws, each from a place of its own on.
    """

    def __init__(self, rates: tuple[float, ...], seed: int = 0, lengths: Floats | None = None) -> None:
        self._uniform = np.random.default_rng(seed).random(NUM_DRAWN, dtype=np.float32)
        self._lengths = lengths
        counts = np.zeros(NUM_DRAWN, dtype=np.uint8)
        for rate in rates:
            counts += self._uniform < rate
        self._table = counts.tobytes() * 2

    def accepted(self, request: Request) -> bytes:
        first, count = request.index * SPREAD % NUM_DRAWN, max(1, min(request.max_tokens, NUM_DRAWN))
        if self._lengths is None:
            return self._table[first : first + count]
        sure, chance = divmod(float(self._lengths[request.index]) - 1, 1)
        uniform = self._uniform.take(range(first, first + count), mode="wrap")
        return ((uniform < chance) + np.uint8(min(sure, 254))).astype(np.uint8).tobytes()

    def proposed(self, _request: Request) -> bytes:
        """As many as allowed."""
        return b""
