"""The run of a folder that `--out` wrote, simulated again by the arguments in its summary."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sim.api import Result, simulate
from sim.arguments import arguments_of
from sim.errors import ConfigError, RunsError, SimError
from sim.inputs import is_there, read_json
from sim.measure.finished import SUMMARY

WHAT_TO_DO = "explain the run itself: servecast explain MODEL --gpu GPU --trace FILE with the flags that it had."
MAY_DIFFER = {"wall_time_s", "servecast_version"}


def simulated_again(folder: str | Path, progress: Callable[[int, int], None] | None = None) -> Result:
    """Raises SimError, with what is gone, where the summary does not lead to the same run."""
    summary = _summary(Path(folder))
    try:
        found = simulate(**arguments_of(summary["arguments"]), progress=progress)
    except SimError as error:
        raise ConfigError(f"{folder} cannot be simulated again: {error} Or {WHAT_TO_DO}") from None
    _check_same(folder, summary, json.loads(json.dumps(found.summary)))
    return found


def _summary(folder: Path) -> Mapping[str, Any]:
    file = folder / SUMMARY if is_there(folder, Path.is_dir) else folder
    summary = read_json(file, RunsError)
    if not isinstance(summary, dict) or not {"trace_sha256", "mean_ttft_ms", "confidence"} <= summary.keys():
        raise RunsError(f"{file}: is no summary of a simulation; give a folder that `servecast simulate --out` wrote.")
    if "arguments" not in summary:
        raise ConfigError(
            f"{file}: has no `arguments`, being of a stream, whose requests are not kept, or of an older Servecast; {WHAT_TO_DO}"
        )
    return summary


def _check_same(folder: str | Path, told: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raises ConfigError where another run came of the arguments: a file has changed since, or Servecast has."""
    if told["trace_sha256"] != found["trace_sha256"]:
        raise ConfigError(
            f"{folder} cannot be simulated again: {told['trace']} holds other requests by now; bring back the trace that it had, or {WHAT_TO_DO}"
        )
    other = next((key for key, value in found.items() if key not in MAY_DIFFER and told.get(key) != value), None)
    if other is None:
        return
    if told["servecast_version"] != found["servecast_version"]:
        why = f"it was simulated by Servecast {told['servecast_version']}, and this is {found['servecast_version']}"
    else:
        why = "a file that it was made of has changed, or Servecast has"
    raise ConfigError(f"{folder}: `{other}` comes out otherwise when it is simulated again: {why}; {WHAT_TO_DO}")
