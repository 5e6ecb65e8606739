"""`python -m tests.conformance CASE.json ... [--engine NAME]`: recorded schedules against an engine."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sim.errors import SimError
from tests.conformance.case import Case, load_recording, recorded_case
from tests.conformance.compare import first_difference, request_difference, transfer_difference
from tests.conformance.digest import digest_difference
from tests.conformance.engines import ENGINES, Run
from tests.conformance.parallel import choices_difference, wave_difference


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line a case, the first difference of each that fails; 1 if any fails.

    Where versions of vLLM follow the same rules and did the same, the engine is run once for all of them.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("cases", nargs="+", type=Path, metavar="CASE.json")
    parser.add_argument("--engine", choices=sorted(ENGINES), default=min(ENGINES))
    asked = parser.parse_args(arguments)
    differences = []
    known: dict[int, str | None] = {}
    for path in asked.cases:
        try:
            recording = load_recording(path)
            found = difference_in(recording, asked.engine, known)
        except (OSError, ValueError, KeyError, TypeError) as error:
            parser.error(
                f"{path} is no recorded schedule ({type(error).__name__}: {error}); name cases like tests/golden/*.gz."
            )
        name = recording.get("name") or path.name
        if "rows" in recording:
            print(f"--   {path.name}: a table, no schedule")  # noqa: T201
            continue
        differences.append(found)
        print(f"{'FAIL' if found else 'ok  '} {name}{f': {found}' if found else ''}")  # noqa: T201
    failed = len(differences) - differences.count(None)
    print(f"{len(differences) - failed} passed, {failed} failed")  # noqa: T201
    return 1 if failed else 0


def difference_in(recording: Mapping[str, Any], engine: str, known: dict[int, str | None]) -> str | None:
    """Where an engine parts from what was recorded, or what kept it from a run; None where it does not or there is no run."""
    try:
        if recording.get("kind") == "dp_lb":
            return choices_difference(recording, engine)
        if recording.get("kind") == "dp_wave":
            return wave_difference(recording, engine)
        if "rows" in recording:
            return None
        case = recorded_case(recording)
        identity = case.identity()
        if identity not in known:
            known[identity] = difference_of(case, ENGINES[engine](case))
        return known[identity]
    except SimError as error:
        return str(error)


def difference_of(case: Case, run: Run) -> str | None:
    """Where a run parts from the recording, or None."""
    if run.crashed:
        return first_difference(case, run.steps)
    return (
        first_difference(case, run.steps)
        or request_difference(case, run.requests)
        or transfer_difference(case, run.kv_events)
        or digest_difference(case, run.steps, run.kv_events)
    )


if __name__ == "__main__":
    sys.exit(main())
