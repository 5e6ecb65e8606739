"""What a fleet file says of pools that hand KV over, as the simulation takes it."""

from collections.abc import Sequence

from sim.cluster.deciders import decider
from sim.cluster.fleet_plan import Disaggregation
from sim.cluster.leases import Lease
from sim.cluster.network import NetworkCosts
from sim.cluster.routers.table import router_options
from sim.errors import ConfigError
from sim.memory.transfers import copied_bytes_per_s, transfer_parameters
from sim.specs.engine import ResolvedEngine
from sim.specs.fleet_file import FleetFile, TransferBlock
from sim.specs.hardware import HardwareProfile
from sim.units import GIGA, MS, US

SECTIONS = ("prefill_router", "decider", "transfer")
DEFAULT_DECIDER = "always"


def disaggregation(asked: FleetFile, gpus: Sequence[HardwareProfile], vllm_version: str) -> Disaggregation | None:
    """None where all pools serve whole requests; `gpus` are those of the pools. Raises ConfigError for what does not go together."""
    roles = {pool.role for pool in asked.pools}
    given = [name for name in SECTIONS if getattr(asked, name) is not None]
    if roles == {"both"}:
        if given and not (given == ["transfer"] and asked.shares_kv):
            raise ConfigError(
                f"{given[0]} is for pools that hand KV over; give one the role prefill and one the role decode, or leave it out."
            )
        return None
    if missing := sorted({"prefill", "decode"} - roles):
        raise ConfigError(
            f"pools of role prefill compute prompts for those of role decode, but none has the role {missing[0]}; add one."
        )
    asked_decider = asked.decider or DEFAULT_DECIDER
    decider(asked_decider)
    if asked.prefill_router is not None:
        router_options(asked.prefill_router)
    transfer = asked.transfer or TransferBlock()
    return Disaggregation(
        network_costs(transfer, gpus),
        asked_decider,
        asked.prefill_router,
        Lease.of(vllm_version, transfer.kv_lease_duration),
        transfer.kv_load_failure_policy,
    )


def network_costs(given: TransferBlock | None, gpus: Sequence[HardwareProfile]) -> NetworkCosts:
    """What is not said: the bandwidth of the slowest GPU's card, and a descriptor's fitted time."""
    asked = given or TransferBlock()
    slowest = min(copied_bytes_per_s(gpu) for gpu in gpus)
    fitted_us = transfer_parameters().descriptor_s.value / US
    return NetworkCosts(
        bytes_per_s=slowest if asked.bandwidth_gb_s is None else asked.bandwidth_gb_s * GIGA,
        latency_s=asked.latency_ms * MS,
        descriptor_s=(fitted_us if asked.descriptor_us is None else asked.descriptor_us) * US,
        handshake_s=asked.handshake_s,
    )


def drafter_with_kv(engine: ResolvedEngine) -> str:
    """What drafts from a KV cache of its own; how many drafts matters where several MTP modules leave a prompt's end to the other side."""
    config, drafts = engine.speculative_config, engine.speculation
    if config is None or drafts is None or not drafts.keeps_kv:
        return "no drafter with a KV cache"
    facts = [drafts.method, config.model, "with parallel_drafting" if drafts.parallel_drafting else None]
    facts += [f"with {drafts.num_speculative_tokens} drafts"] if drafts.num_tokens_not_kept else []
    return " ".join(fact for fact in facts if fact)
