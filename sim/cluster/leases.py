"""How long a prefill replica keeps KV that nobody fetches.

Follows vLLM's NIXL connector: from 0.26 on a lease of 30 s (`kv_lease_duration`) from the end of the prefill, which the decode replica
renews every sixth of that for two thirds of it as long as it lives; before, 480 s in any case (`VLLM_NIXL_ABORT_REQUEST_TIMEOUT`).
Deliberate differences: a replica renews at multiples of its interval, and versions before 0.11 have the 480 s as well.
"""

from typing import NamedTuple, Self

from sim.engine.ticks import last_multiple
from sim.specs.releases import parse_version

RENEWED_SINCE = "0.26.0"
RENEWED_S = 30.0
FIXED_S = 480.0
RENEWALS_A_LEASE = 6
RENEWED_SHARE = 2 / 3


class Lease(NamedTuple):
    """It lasts `duration_s`; one that `is_renewed` ends after its other side has gone."""

    duration_s: float = RENEWED_S
    is_renewed: bool = True

    @classmethod
    def of(cls, vllm_version: str, duration_s: float | None = None) -> Self:
        """That of a version, of another duration if one is given."""
        is_renewed = parse_version(vllm_version) >= parse_version(RENEWED_SINCE)
        return cls(duration_s or (RENEWED_S if is_renewed else FIXED_S), is_renewed)

    def end_s(self, begun_s: float, gone_s: float) -> float:
        """Of one that is renewed, began then, and whose other side has gone since."""
        renewed_s = last_multiple(gone_s, self.duration_s / RENEWALS_A_LEASE)
        return max(begun_s + self.duration_s, renewed_s + RENEWED_SHARE * self.duration_s)


NEWEST_LEASE = Lease()
