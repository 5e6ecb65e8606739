"""How many examples a property is tried on."""

import os

from hypothesis import settings

EFFORT = float(os.environ.get("EXAMPLES", "1"))
"""A share of the counts that tests name: `make thorough` takes twenty times as many, `make test` a seventh."""
ENGINE_EFFORT = float(os.environ.get("ENGINE_EXAMPLES", EFFORT))
"""The same for the engine's tests: `make test` takes a seventh where it is compiled, a fiftieth where its sources run."""


def examples(count: int, *, steps: int = 50, effort: float = EFFORT) -> settings:
    """So many where a test is run by itself; `steps` at most are those of a state machine."""
    return settings(max_examples=max(1, round(count * effort)), stateful_step_count=steps)


def engine_examples(count: int, *, steps: int = 50) -> settings:
    """The same of the engine, which is one logic, interpreted or compiled."""
    return examples(count, steps=steps, effort=ENGINE_EFFORT)
