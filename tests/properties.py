"""How many examples a property is tried on."""

import os

from hypothesis import settings

EFFORT = float(os.environ.get("EXAMPLES", "1"))
"""A share of the counts that tests name: `make thorough` takes twenty times as many, `make test` a third, fewer of the interpreted engine."""


def examples(count: int, *, steps: int = 50) -> settings:
    """So many where a test is run by itself; `steps` at most are those of a state machine."""
    return settings(max_examples=max(1, round(count * EFFORT)), stateful_step_count=steps)
