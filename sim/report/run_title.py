"""The title of a run: the lines above its table and its plots."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sim.errors import listed

FEW = 4  # values of a list that are all shown
HASH_DIGITS = 12
USUAL = {"model": "roofline", "composition": "additive", "sampling": "default", "expert_routing": "skewed"}


def run_title(summary: Mapping[str, Any], width: int) -> str:
    """A run in a few lines of at most so many characters: model, GPUs, version, trace, load, arguments given."""
    return "\n".join(line for words in _sentences(summary) for line in textwrap.wrap(words, width))


def _sentences(summary: Mapping[str, Any]) -> Iterator[str]:
    yield f"{summary['model_id']} on {_servers(summary)}, vLLM {summary['vllm_version']}, {summary['trace'] or 'a trace'}"
    yield load_text(summary, summary["arrived"])
    unusual = {name: value for name, value in summary["step_time"].items() if value != USUAL.get(name)}
    arguments = summary["engine"] | ({"step_times": ", ".join(unusual.values())} if unusual else {})
    if arguments:
        yield arguments_text(arguments)


def _servers(summary: Mapping[str, Any]) -> str:
    """The GPUs, those of each pool of a fleet, and its router."""
    if "fleet" not in summary:
        return _replica(summary)
    fleet = summary["fleet"]
    size = {"replicas": fleet["replicas"]}
    if "servers" in fleet:
        size |= {"servers": fleet["servers"], "data_parallel_size": fleet["replicas"] // fleet["servers"]}
    return pools_text(summary.get("pools") or [{**summary, **size}], fleet["router"])


def pools_text(pools: Iterable[Mapping[str, Any]], router: str | Mapping[str, Any]) -> str:
    """`2 replicas of 1 x h100-sxm and 1 server of 8 engines of 1 x h200-sxm behind llm_d`."""
    return f"{' and '.join(map(_pool_text, pools))} behind {router_text(router)}"


def _pool_text(pool: Mapping[str, Any]) -> str:
    count, size = pool.get("servers", pool["replicas"]), pool.get("data_parallel_size", 1)
    noun, engines = ("server", f"{size} engines of ") if size > 1 else ("replica", "")
    return f"{count} {noun}{'s' if count > 1 else ''} of {engines}{_replica(pool)}"


def capacity_servers(summary: Mapping[str, Any]) -> str:
    """What an answer of `capacity` is about."""
    if "pools" in summary:
        return pools_text(summary["pools"], summary["router"])
    return f"{summary['num_gpus']} x {summary['gpu']}"


def _replica(of: Mapping[str, Any]) -> str:
    ranks, stages = of["tensor_parallel_size"], of.get("pipeline_parallel_size", 1)
    return f"{ranks} x {of['gpu']}" if stages == 1 else f"{ranks * stages} x {of['gpu']} in {stages} stages"


def search_title(summary: Mapping[str, Any], width: int) -> str:
    """The same for a search or a capacity: the objective, the limits, and the arguments held constant."""
    return "\n".join(line for words in _search_sentences(summary) for line in textwrap.wrap(words, width))


def _search_sentences(summary: Mapping[str, Any]) -> Iterator[str]:
    yield f"{summary['model_id']} on {_searched(summary)}, vLLM {summary['vllm_version']}, {summary['trace'] or 'a trace'}"
    yield load_text(summary, summary["num_prompts"])
    limits = ", ".join(f"{name} <= {limit_ms:g} ms" for name, limit_ms in summary["slo"].items())
    yield "; ".join(
        words
        for words in (
            f"for {', '.join(summary['objective'])}" if "objective" in summary else "",
            f"within {limits}" if limits else "",
            f"given {arguments_text(summary['engine'])}" if summary["engine"] else "",
        )
        if words
    )


def _searched(summary: Mapping[str, Any]) -> str:
    """What a search or a capacity is about."""
    if "num_gpus" in summary:
        return capacity_servers(summary)
    if "pools" not in summary:
        return str(summary["gpu"])
    return listed([f"{pool['pool']} ({_role(pool)}{pool['gpu']})" for pool in summary["pools"]])


def _role(pool: Mapping[str, Any]) -> str:
    return "" if pool["role"] == "both" else f"{pool['role']} on "


def load_text(summary: Mapping[str, Any], num_requests: int) -> str:
    """How many requests of which trace, at what rate: as recorded, scaled, or asked for."""
    first = "first " if summary["limit"] is not None and summary["limit"] <= num_requests else ""
    noun = "request" if num_requests == 1 else "requests"
    has_rate = num_requests > 1 and not summary.get("users") and not _own_limits(summary)
    rate = f" {_rate(summary)}" if has_rate else ""
    streamed = ", streamed" if "streamed" in summary else ""
    clock = ", by the client's clock" if summary.get("clock") == "client" else ""
    return f"{first}{num_requests:,} {noun}{rate}{_senders(summary)}{streamed}{clock}, sha256 {summary['trace_sha256'][:HASH_DIGITS]}"


def _senders(summary: Mapping[str, Any]) -> str:
    """The clients, if not the trace alone sent the requests."""
    if summary.get("users"):
        mean = " on average" if summary["think_time"] == "exponential" else ""
        users = "1 user who thinks" if summary["users"] == 1 else f"{summary['users']:,} users who think"
        return f" by {users} {summary['think_time_s']:g} s{mean}"
    if own := _own_limits(summary):
        return f", at most {' to '.join(f'{limit:,}' for limit in sorted({min(own), max(own)}))} in flight (the trace's own)"
    limit = "" if summary.get("max_concurrency") is None else f", at most {summary['max_concurrency']:,} in flight"
    return f"{limit}, in an open loop" if summary.get("open_loop") else limit


def _own_limits(summary: Mapping[str, Any]) -> list[int]:
    """Of the trace's stages, if these decide when requests are sent."""
    limits = [stage.get("max_concurrency") for stage in summary.get("stages", ())]
    return [] if None in limits or summary.get("open_loop") or summary.get("max_concurrency") else limits


def _rate(summary: Mapping[str, Any]) -> str:
    found, scale = summary["trace_request_rate"], summary["rate_scale"]
    rate = "at once" if found is None else f"at {found:,.4g} requests/s"
    if summary["request_rate"] is not None:
        return f"{rate} (request_rate={summary['request_rate']})"
    return f"{rate} (the trace's own)" if scale == 1.0 else f"{rate} (rate_scale={scale:g})"


def router_text(router: str | Mapping[str, Any]) -> str:
    """A router as the command line takes it."""
    if isinstance(router, str):
        return router
    options = ",".join(f"{name}={value}" for name, value in router.items() if name != "policy")
    return f"{router['policy']}:{options}" if options else str(router["policy"])


def arguments_text(engine: Mapping[str, Any]) -> str:
    """Engine arguments in a line, long lists by their ends."""
    return " ".join(f"{name}={_value(value)}" for name, value in engine.items())


def _value(value: Any) -> str:
    if not isinstance(value, list | tuple):
        return str(value)
    return ",".join(map(str, value if len(value) <= FEW else (*value[:2], "...", value[-1])))
