"""A candidate as answers carry it: as JSON, as a flat row, as a fleet file and as lines that start it."""

import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any

from sim.errors import ConfigError
from sim.fleet import DeployedFleet, pool_engine
from sim.search.blueprint import ARGUMENTS, AUTOSCALE, REPLICAS, ROUTER, SECTIONS, SHARING, Params
from sim.search.evaluate import Scenario
from sim.specs.engine import EngineConfig
from sim.specs.fleet_file import TransferBlock
from sim.specs.serve_command import serve_command
from sim.specs.speculative_config import SpeculativeConfig

AROUND = (ROUTER, *SHARING)
"""Knobs of what is around replicas, where there is no fleet file."""


def config_json(scenario: Scenario, params: Params) -> dict[str, Any]:
    """What a candidate is; of a fleet also its `knobs` that are not left to vLLM, and each pool with replicas."""
    made = scenario.blueprint
    size = {REPLICAS: made.num_replicas(params), "num_gpus": made.num_gpus(params)}
    if scenario.fleet is None:
        around = {name: params[name] for name in AROUND if name in params}
        return {
            "engine": engine_json(scenario, params),
            REPLICAS: size[REPLICAS],
            **around,
            "num_gpus": size["num_gpus"],
        }
    knobs = {name: value for name, value in params.items() if value is not None}
    with suppress(ConfigError):
        return {"engine": engine_json(scenario, params), "knobs": knobs, **_fleet_json(scenario, params), **size}
    return {"engine": engine_json(scenario, params), "knobs": knobs, **size}


def _fleet_json(scenario: Scenario, params: Params) -> dict[str, Any]:
    file, engine = scenario.blueprint.fleet_file(params), scenario.engine(params)
    pools = [
        {"pool": name, "role": block.role, REPLICAS: block.replicas, "engine": pool_engine(engine, block).to_json()}
        | ({AUTOSCALE: block.autoscale} if block.autoscale else {})
        for name, block in zip(file.names, file.pools, strict=True)
    ]
    sections = {name: getattr(file, name) for name in SECTIONS if getattr(file, name) is not None}
    return {"pools": pools, ROUTER: scenario.blueprint.router_of(params), **sections}


def engine_json(scenario: Scenario, params: Params) -> dict[str, Any]:
    """The engine arguments that are not left to vLLM, under its names; of a fleet those for all pools.

    Of values that exclude each other, which make no engine, those that the candidate names.
    """
    try:
        engine = scenario.engine(params)
    except ConfigError:
        return {name: value for name, value in params.items() if name in ARGUMENTS and value is not None}
    shown = engine.given.keys() | {name for name, value in params.items() if value is not None}
    values = {entry.name: getattr(engine, entry.name) for entry in fields(engine) if entry.name in shown}
    return {name: value.to_json() if isinstance(value, SpeculativeConfig) else value for name, value in values.items()}


def portable_fleet(fleet: DeployedFleet, engine: EngineConfig) -> dict[str, Any]:
    """The content of a fleet file that needs neither knobs nor arguments for all pools; `engine` are those that were given.

    Simulated with the same GPU, version and load, given those arguments or not, it has the fleet's figures.
    """
    assert fleet.asked is not None, "a fleet file is made of one"
    pools = []
    for pool, block in zip(fleet.pools, fleet.asked.pools, strict=True):
        arguments = pool.given.to_json() | dict.fromkeys(sorted(engine.given.keys() - pool.given.given.keys()))
        given = {name: value for name, value in block.model_dump(exclude_unset=True).items() if name != "engine"}
        own = {"engine": arguments} if arguments else {}
        pools.append(given | {"name": pool.name, REPLICAS: pool.num_servers} | own)
    sections = {name: value for name, value in fleet.asked.to_json().items() if value is not None}
    return sections | {ROUTER: fleet.router, "pools": pools}


def nixl_config(transfer: TransferBlock | None) -> dict[str, Any]:
    """vLLM's `--kv-transfer-config` of either side, as llm-d has it, with what was asked for of it."""
    asked = transfer or TransferBlock()
    config: dict[str, Any] = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    if asked.kv_load_failure_policy != "fail":
        config["kv_load_failure_policy"] = asked.kv_load_failure_policy
    if asked.kv_lease_duration is not None:
        config["kv_connector_extra_config"] = {"kv_lease_duration": asked.kv_lease_duration}
    return config


def serve_lines(fleet: DeployedFleet) -> Iterator[str]:
    """A line; of a fleet that was asked for one a pool, and whose it is. Pools that hand KV over have the connector between them."""
    for pool in fleet.pools:
        command = serve_command(pool.deployment.model.name, pool.given)
        if pool.role != "both" and fleet.asked:
            command += f" --kv-transfer-config {shlex.quote(json.dumps(nixl_config(fleet.asked.transfer)))}"
        yield f"{command}  # {pool.name}, {pool.num_servers} times" if fleet.asked else command


def deploy_commands(scenario: Scenario, params: Params) -> str:
    """The `vllm serve` line, and how many times to run it; of a fleet a line a pool."""
    if scenario.fleet is not None:
        return "\n  ".join(serve_lines(scenario.deploy_fleet(params)))
    command, made = serve_command(scenario.model.name, scenario.engine(params)), scenario.blueprint
    count, shared = made.num_replicas(params), made.sharing_of(params)
    remarks = [f"{count} times, behind a {made.router_of(params).replace('_', '-')} router"] if count > 1 else []
    remarks += [f"with {name} {given}" for name, given in shared.items()]
    return f"{command}  # {', '.join(remarks)}" if remarks else command


def candidate_row(candidate: Mapping[str, Any]) -> dict[str, Any]:
    """A candidate as one flat row; of a fleet with a column a knob."""
    names = (REPLICAS, *AROUND, "num_gpus", "feasible", "reason", "share", "score")
    facts = {name: candidate[name] for name in names if name in candidate}
    arguments = _plain(candidate["engine"]) | _plain(candidate.get("knobs", {}))
    return {**arguments, **facts, "slo_violation": candidate["slo_violation"], **_figures(candidate)}


def sensitivity_rows(sensitivity: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row for each value of each knob."""
    return [
        {"knob": knob, **_plain({"value": point["value"]}), "is_winner": point["is_winner"], "reason": point["reason"]}
        | {name: point[name] for name in ("share", "score", "slo_violation")}
        | _figures(point)
        for knob, points in sensitivity.items()
        for point in points
    ]


def _figures(row: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics of a row, without those that have a column of their own, and without those of its pools."""
    return {name: value for name, value in row["metrics"].items() if name not in {REPLICAS, "num_gpus", "pools"}}


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with lists as text, one cell each."""
    return {
        name: " ".join(map(str, value)) if isinstance(value, list | tuple) else value for name, value in values.items()
    }
