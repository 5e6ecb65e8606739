"""Flags that several commands share stand once, and each command has them all."""

from dataclasses import dataclass, fields
from inspect import signature
from typing import Annotated

import pytest
import typer

from sim.cli.capacity import capacity
from sim.cli.optimize import optimize
from sim.cli.shared_flags import SharedFlags, with_shared_flags
from sim.cli.simulate import simulate


@dataclass(frozen=True, kw_only=True)
class Colours:
    """Two flags, of which one is required."""

    front: Annotated[str, typer.Option()]
    back: Annotated[str, typer.Option()] = "white"


def test_a_command_gets_its_flags_as_one_object() -> None:
    """They stand flat in its signature, in place of the object; what is required has no default."""
    seen = []

    @with_shared_flags
    def paint(first: int, colours: Colours, *, last: int = 3) -> None:
        seen.append((first, colours, last))

    paint(first=1, front="red", back="blue", last=2)
    assert seen == [(1, Colours(front="red", back="blue"), 2)]
    parameters = signature(paint).parameters
    assert list(parameters) == ["first", "front", "back", "last"]
    assert parameters["front"].default is parameters["first"].default
    assert parameters["back"].default == "white"


@pytest.mark.parametrize("command", [simulate, optimize, capacity])
def test_commands_that_replay_a_trace_have_all_shared_flags(command: object) -> None:
    """A flag added to the group is a flag of all three."""
    assert callable(command)
    assert {one.name for one in fields(SharedFlags)} <= signature(command).parameters.keys()
