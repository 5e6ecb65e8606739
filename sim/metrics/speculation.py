"""How drafts fared, under the names that `vllm bench serve` gives these figures."""

from itertools import accumulate
from typing import Any

from sim.engine.records import Records


def speculation_figures(records: Records) -> dict[str, Any]:
    """Figures in `spec_decode_...`; nothing where nobody speculates.

    A draft is what one verification verifies; the acceptance length counts the token that every one of them yields. The rate
    is in percent, and those by position are shares of all verifications, as vLLM logs them.
    """
    found = records.speculation
    if found is None:
        return {}
    num_drafts = sum(found.verified)
    accepted_at = list(accumulate(reversed(found.verified[1:])))[::-1]
    num_accepted = sum(accepted_at)
    return {
        "spec_decode_acceptance_rate": _ratio(100 * num_accepted, found.num_draft_tokens),
        "spec_decode_acceptance_length": 1 + num_accepted / num_drafts if num_drafts else None,
        "spec_decode_num_drafts": num_drafts,
        "spec_decode_draft_tokens": found.num_draft_tokens,
        "spec_decode_accepted_tokens": num_accepted,
        "spec_decode_per_position_acceptance_rates": [_ratio(count, num_drafts) for count in accepted_at],
    }


def _ratio(part: float, whole: int) -> float | None:
    return part / whole if whole else None
