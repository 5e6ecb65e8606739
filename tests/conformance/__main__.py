"""`python -m tests.conformance CASE.json ... [--engine NAME] ...`: recorded schedules against an engine."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sim.errors import SimError
from tests.conformance.case import Case, load_recording, recorded_case
from tests.conformance.compare import first_difference, request_difference, transfer_difference
from tests.conformance.digest import digest_difference
from tests.conformance.engines import ENGINES, Run
from tests.conformance.parallel import choices_difference, wave_difference

Known = dict[tuple[str, int], str | None]
"""By engine and run: where they part, or None."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line a case, the first difference of each engine that fails; 1 if any fails.

    Where versions of vLLM follow the same rules and did the same, an engine is run once for all of them.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("cases", nargs="+", type=Path, metavar="CASE.json")
    parser.add_argument("--engine", choices=sorted(ENGINES), action="append", help="may be repeated")
    asked = parser.parse_args(arguments)
    engines = asked.engine or [min(ENGINES)]
    passed = []
    known: Known = {}
    for path in asked.cases:
        try:
            recording = load_recording(path)
            found = differences_in(recording, engines, known)
        except (OSError, ValueError, KeyError, TypeError) as error:
            parser.error(
                f"{path} is no recorded schedule ({type(error).__name__}: {error}); name cases like tests/golden/*.gz."
            )
        name = recording.get("name") or path.name
        if "rows" in recording:
            print(f"--   {path.name}: a table, no schedule")  # noqa: T201
            continue
        passed.append(not found)
        print(f"{'FAIL' if found else 'ok  '} {': '.join([name, *found])}")  # noqa: T201
    print(f"{passed.count(True)} passed, {passed.count(False)} failed")  # noqa: T201
    return 0 if all(passed) else 1


def differences_in(recording: Mapping[str, Any], engines: Sequence[str], known: Known) -> list[str]:
    """Where engines part from what was recorded, or what kept them from a run; none of a recording without a run."""
    if "rows" in recording:
        return []
    try:
        differs = _comparison(recording, known)
    except SimError as error:
        return [str(error)]
    found = ((engine, differs(engine)) for engine in engines)
    return [f"{engine}: {difference}" for engine, difference in found if difference]


def _comparison(recording: Mapping[str, Any], known: Known) -> Callable[[str], str | None]:
    """Runs an engine, by its name, and tells where it parts from the recording."""
    if recording.get("kind") == "dp_lb":
        return lambda engine: choices_difference(recording, engine)
    if recording.get("kind") == "dp_wave":
        return lambda engine: wave_difference(recording, engine)
    case = recorded_case(recording)
    identity = case.identity()

    def differs(engine: str) -> str | None:
        if (engine, identity) not in known:
            known[engine, identity] = _run_difference(case, engine)
        return known[engine, identity]

    return differs


def _run_difference(case: Case, engine: str) -> str | None:
    try:
        return difference_of(case, ENGINES[engine](case))
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
