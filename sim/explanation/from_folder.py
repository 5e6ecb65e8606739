"""The run of a folder that `--out` wrote, simulated again by the arguments in its summary."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sim.api import Result, simulate
from sim.errors import ConfigError, RunsError, SimError
from sim.inputs import is_there, read_json
from sim.measure.finished import SUMMARY
from sim.specs.engine import EngineConfig

AS_SUCH = ("rate_scale", "limit", "vllm_version", "max_concurrency", "open_loop", "users", "seed")
"""Arguments that a summary has under their own names."""
UNTOLD = ("kv_store", "kv_pulls")  # what came of these a summary says, and not with which options
WHAT_TO_DO = "explain the run itself: servecast explain MODEL --gpu GPU --trace FILE with the flags that it had."


def simulated_again(folder: str | Path, progress: Callable[[int, int], None] | None = None) -> Result:
    """Raises SimError, with what is gone, where the summary does not lead to the same run."""
    summary = _summary(Path(folder))
    try:
        found = simulate(**arguments_of(summary), progress=progress)
    except SimError as error:
        raise ConfigError(f"{folder} cannot be simulated again: {error} Or {WHAT_TO_DO}") from None
    if found.summary["trace_sha256"] != summary["trace_sha256"]:
        raise ConfigError(
            f"{folder} cannot be simulated again: {summary['trace']} holds other requests by now; bring back the trace that it had, or {WHAT_TO_DO}"
        )
    return found


def _summary(folder: Path) -> Mapping[str, Any]:
    file = folder / SUMMARY if is_there(folder, Path.is_dir) else folder
    summary = read_json(file, RunsError)
    if not isinstance(summary, dict) or not {"trace_sha256", "mean_ttft_ms", "confidence"} <= summary.keys():
        raise RunsError(f"{file}: is no summary of a simulation; give a folder that `servecast simulate --out` wrote.")
    return summary


def arguments_of(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `sim.simulate` that a summary tells. Raises ConfigError for a run of which it does not tell all."""
    if summary["trace"] is None:
        raise ConfigError("its requests came from no file.")
    fleet = summary.get("fleet", {})
    if untold := [name for name in UNTOLD if name in summary and name not in fleet]:
        raise ConfigError(f"its summary does not say how KV was shared ({untold[0]}).")
    engine: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in summary["engine"].items()
    }
    rate = summary["request_rate"]
    return {
        "model": summary["model_id"],
        "gpu": _gpu(summary),
        "trace": summary["trace"],
        "engine": EngineConfig(**engine),
        "request_rate": None if rate is None else float(rate),
        "slo": [f"{name}={limit_ms}ms" for name, limit_ms in summary.get("slo", {}).items()],
        "think_time": _think_time(summary),
        "intervals": bool(summary["confidence"].get("intervals")),
        **{name: summary[name] for name in AS_SUCH},
        **_step_times(summary["step_time"]),
        **_fleet(fleet),
    }


def _gpu(summary: Mapping[str, Any]) -> str:
    """That of all, or of a pool whose file leaves it to the command line."""
    if summary["gpu"] is not None:
        return str(summary["gpu"])
    asked = summary["fleet"].get("pools", [{}])
    pools = zip(summary["pools"], asked, strict=True)
    return str(next((pool["gpu"] for pool, given in pools if "gpu" not in given), summary["pools"][0]["gpu"]))


def _think_time(summary: Mapping[str, Any]) -> str | None:
    if summary["users"] is None:
        return None
    kind = "exponential:" if summary["think_time"] == "exponential" else ""
    return f"{kind}{summary['think_time_s']}"


def _step_times(told: Mapping[str, str]) -> dict[str, Any]:
    accepted = tuple(map(float, told["acceptance"].split(","))) if "acceptance" in told else ()
    acceptance = {"acceptance": accepted if len(accepted) > 1 else accepted[0]} if accepted else {}
    if told["model"] != "roofline":
        return acceptance | {"step_time_model": told["model"]}
    return acceptance | {name: told[name] for name in ("composition", "sampling", "expert_routing")}


def _fleet(told: Mapping[str, Any]) -> dict[str, Any]:
    """Replicas and their router, or the fleet's file."""
    if not told:
        return {}
    file = {name: value for name, value in told.items() if name != "replicas"}
    return {"replicas": told["replicas"], **file} if file.keys() == {"router"} else {"fleet": file}
