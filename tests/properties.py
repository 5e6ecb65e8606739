"""How many examples a property is tried on."""

import os

from hypothesis import settings

EFFORT = float(os.environ.get("EXAMPLES", "1"))
"""Twenty times as many are `make thorough`'s; in the gate the interpreted engine gets fewer than the compiled one."""


def examples(count: int, *, steps: int = 50) -> settings:
    """So many in the gate; `steps` at most are those of a state machine."""
    return settings(max_examples=max(1, round(count * EFFORT)), stateful_step_count=steps)
