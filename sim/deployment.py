"""A model on GPUs: its engine arguments resolved, its memory planned, its steps timed. The one place that composes these."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from sim.cluster.adapters import lora_slots
from sim.engine.config import SchedulerConfig, scheduler_config
from sim.engine.kv_cache_manager import can_ever_fit
from sim.engine.rank_group import LockStepRules
from sim.engine.rank_steps import DualBatches
from sim.engine.records import Floats
from sim.engine.walking.acceptance import DrawnAcceptance
from sim.engine.walking.modes import PLAIN, POLLING_S, Modes
from sim.errors import ConfigError, DoesNotFitError
from sim.memory.cpu_tier import cpu_tier
from sim.memory.design import GraphMemoryModel
from sim.memory.plan import MemoryPlan, plan_memory
from sim.memory.swap_space import swap_space
from sim.memory.transfers import copied_bytes_per_s
from sim.memory.what_ifs import check_what_ifs
from sim.specs.acceptance import AcceptedRates, accepted_rates
from sim.specs.drafters import Drafter, drafter_of, with_prediction_layers
from sim.specs.engine import EngineConfig, ResolvedEngine
from sim.specs.hardware import HardwareProfile, load_gpu
from sim.specs.kv_transfer import OffloadConfig
from sim.specs.model import ModelSpec
from sim.specs.models import load_model
from sim.specs.notes import engine_notes, layout_notes, ranks_notes
from sim.specs.releases import release_for
from sim.specs.vllm import resolve_engine
from sim.specs.weight_offload import offloaded
from sim.steptime.common_reads import CommonReads, common_reads
from sim.steptime.graphs import GraphDispatch
from sim.steptime.layerwise import HostKV, LayerwiseStepTime
from sim.steptime.options import DEFAULT_STEP_TIMES, StepTimeOptions
from sim.steptime.pipeline import pipeline_step_time
from sim.steptime.protocol import StepTimeModel
from sim.steptime.roofline import RooflineStepTime
from sim.steptime.weight_offload import with_host_weights
from sim.workload.trace import Trace

ModelLike = str | Path | ModelSpec
GpuLike = str | Path | HardwareProfile
DEFAULTS = EngineConfig()


@dataclass(frozen=True)
class Deployment:
    """What `vllm serve` makes of its arguments at start-up, whether or not it fits; `engine` has the plan's context length.

    `offload` is its CPU tier, `drafter` the model that drafts for it and `host_kv` a KV cache that is read layer by layer, if it has one.
    """

    model: ModelSpec
    gpu: HardwareProfile
    engine: ResolvedEngine
    plan: MemoryPlan
    step_times: StepTimeOptions = DEFAULT_STEP_TIMES
    notes: tuple[str, ...] = ()  # on arguments without effect, or with another than asked for
    offload: OffloadConfig | None = None
    drafter: Drafter | None = None
    host_kv: HostKV | None = None

    def __str__(self) -> str:
        num_gpus = self.engine.num_gpus * self.engine.data_parallel_size
        return f"{self.model.name} on {num_gpus} x {self.gpu.name}"

    @cached_property
    def config(self) -> SchedulerConfig:
        """The configuration of its scheduler."""
        return scheduler_config(self.engine, self.plan, self._common_reads)

    @property
    def _common_reads(self) -> CommonReads | None:
        """How its GPU reads what decodes have in common; None where it is not told how long reading takes, or where KV is read from the host."""
        if self.step_times.given is not None or self.host_kv is not None:
            return None
        engine = self.engine
        return common_reads(
            self.model, self.gpu, engine.tensor_parallel_size, engine.kv_cache_dtype_bytes, self.plan.stage
        )

    @cached_property
    def modes(self) -> Modes:
        """What its engine does beyond the plain one."""
        return self.modes_for(None)

    def modes_for(self, trace: Trace | None, seed: int = 0) -> Modes:
        """The same for a trace that may say of each request how it fares; what is left to chance is drawn with that seed."""
        modes = _with_cpu_tier(_with_stages(_with_adapters(_what_ifs(self), self), self.engine), self.offload)
        modes = _with_interval(modes, self)
        return _with_drafts(modes, self, None if trace is None else _acceptance_lengths(trace), seed)

    @cached_property
    def lock_step(self) -> LockStepRules | None:
        """Where its ranks step together, as those with experts do."""
        engine = self.engine
        if engine.data_parallel_size == 1 or not self.model.has_experts:
            return None
        release = release_for(engine.vllm_version)
        return LockStepRules(
            release.dp_sync_interval,
            release.dp_looks_at_once,
            engine.prefill_schedule_interval,
            None if self.step_times.given else self.graph_dispatch,
            engine.uniform_query_len - 1,
            DualBatches(engine.dbo_decode_token_threshold, engine.dbo_prefill_token_threshold)
            if engine.enable_dbo
            else None,
        )

    @cached_property
    def accepted(self) -> AcceptedRates | None:
        """How drafts fare, None without speculation. Raises ConfigError where nothing tells."""
        config, speculation = self.engine.speculative_config, self.engine.speculation
        return accepted_rates(config, speculation, self.step_times.acceptance) if config and speculation else None

    @cached_property
    def graph_dispatch(self) -> GraphDispatch:
        return GraphDispatch.of(self.engine)

    @cached_property
    def step_time(self) -> StepTimeModel:
        """The step times that are given, shared out over several stages; else the roofline."""
        if self.step_times.given is not None and self.engine.pipeline_parallel_size == 1:
            return self.step_times.given
        return self._roofline(self.gpu, self.engine)

    @property
    def kernel_times(self) -> StepTimeModel:
        """The step times that tell how long a step's kernels take, if any do: those that are given do not know of stages."""
        return self.step_times.given or self.step_time

    @property
    def roofline_on(self) -> Callable[[HardwareProfile], StepTimeModel] | None:
        """Step times on another GPU; None where step times are given."""
        return None if self.step_times.given else lambda gpu: self._roofline(gpu, self.engine)

    @property
    def roofline_under(self) -> Callable[[ResolvedEngine], StepTimeModel] | None:
        """Step times under other engine arguments; None where step times are given."""
        return None if self.step_times.given else lambda engine: self._roofline(self.gpu, engine)

    def _roofline(self, gpu: HardwareProfile, engine: ResolvedEngine) -> StepTimeModel:
        if engine.pipeline_parallel_size > 1:
            return pipeline_step_time(self.model, gpu, engine, self.step_times, copied_bytes_per_s(gpu), self.drafter)
        steps = RooflineStepTime(self.model, gpu, engine, self.step_times, drafter=self.drafter)
        if self.host_kv is not None:
            return LayerwiseStepTime(steps, self.host_kv, gpu, copied_bytes_per_s(gpu))
        weights = offloaded(self.model, engine, self.plan.stage)
        link_bytes_per_s, routing = copied_bytes_per_s(gpu), self.step_times.expert_routing
        return with_host_weights(steps, weights, self.model, gpu, engine, link_bytes_per_s, routing)

    @property
    def run_notes(self) -> tuple[str, ...]:
        """The notes, and what a run takes for granted."""
        accepted = (self.accepted.note,) if self.accepted and self.accepted.note else ()
        return (*self.notes, *accepted, *self._adapters_notes)

    @property
    def _adapters_notes(self) -> tuple[str, ...]:
        lora = self.modes.lora
        if lora is None or self.lock_step is None:
            return ()
        note = (
            f"a rank without work makes adapters of zeros for a dummy batch, in which all ranks wait about {lora.dummy_s:.2g} s for its host,"
            " and loads its own again behind it, as vLLM does."
        )
        return (note,)

    def why_not(self, *, what_if: bool = True) -> str | None:
        """Why it does not start; None where it does, or where `num_gpu_blocks_override` is taken at its word.

        That is so where step times are given as well. As a `what_if` it is so where as many blocks hold one request:
        more blocks than there is memory for are a question, too few a mistake.
        """
        override = self.engine.num_gpu_blocks_override
        is_given = override and self.step_times.given is not None
        if self.plan.feasible or is_given or (override and what_if and self._holds_one_request):
            return None
        return self.plan.reason

    @property
    def _holds_one_request(self) -> bool:
        return can_ever_fit(self.config.max_model_len, self.config)

    def require_runnable(self) -> "Deployment":
        """Returns itself. Raises ConfigError for what is planned but not simulated, DoesNotFitError if it does not start."""
        self._check_speculation()
        self.check_lock_step()
        modes = self.modes  # which refuses what-ifs that do not go with the rest
        if self.offload is not None and modes.num_stages > 1:
            raise ConfigError(
                "kv_offloading_size is not simulated with pipeline stages, whose copies vLLM does not order: leave it out, "
                "or use tensor_parallel_size instead of pipeline_parallel_size."
            )
        if reason := self.why_not():
            raise DoesNotFitError(f"{self} does not start: {reason}")
        return self

    def check_lock_step(self) -> None:
        """Raises ConfigError for what was not recorded of ranks that step together, and for what those alone do."""
        engine = self.engine
        if self.lock_step is None:
            if engine.data_parallel_external_lb:
                raise ConfigError(
                    "data_parallel_external_lb is for models with experts, in vLLM as here: leave it out, and ask for"
                    f" {engine.data_parallel_size} times as many replicas instead of data_parallel_size."
                )
            if engine.prefill_schedule_interval > 1 and not release_for(engine.vllm_version).has_local_prefill_interval:
                raise ConfigError(
                    f"prefill_schedule_interval {engine.prefill_schedule_interval} changes nothing before vLLM 0.33 but for data-parallel"
                    " ranks with experts, which step together; leave it out, or choose vllm_version 0.33.0."
                )
            return
        if (
            engine.all2all_backend.startswith("flashinfer_nvlink")
            and (num_gpus := engine.num_gpus * engine.data_parallel_size) > self.gpu.num_linked_gpus
        ):
            raise ConfigError(
                f"all2all_backend {engine.all2all_backend} goes over NVLink, which joins {self.gpu.num_linked_gpus} {self.gpu.name}, got"
                f" {num_gpus}; choose another one."
            )
        if engine.enable_dbo:
            self._check_dual_batches()
        if engine.enable_lora:
            self._check_adapters()
        if engine.pipeline_parallel_size > 1:
            self._check_staged_ranks()
        not_simulated = {
            "async_scheduling before vLLM 0.11.1": engine.async_scheduling and not engine.rules.stops_at_last_token,
            "preemption_mode swap": self.modes.swap_space is not None,
        }
        if given := next((name for name, is_there in not_simulated.items() if is_there), None):
            raise ConfigError(
                f"{given} is not simulated for data-parallel ranks with experts, which step together; leave it out, or use"
                " tensor_parallel_size in place of data_parallel_size."
            )

    def _check_staged_ranks(self) -> None:
        """What vLLM's loop was not driven with."""
        engine = self.engine
        beside = {
            "speculative_config": engine.speculation is not None,
            "enable_lora": engine.enable_lora,
            "enable_dbo": engine.enable_dbo,
        }
        if given := next((name for name, is_there in beside.items() if is_there), None):
            raise ConfigError(
                f"{given} is not simulated for data-parallel ranks with experts whose layers lie on pipeline stages, got pipeline_parallel_size"
                f" {engine.pipeline_parallel_size}, as nobody recorded what their dummy batches cost each other then; leave one of them out."
            )

    def _check_dual_batches(self) -> None:
        """What overlaps with computing is what ranks send each other."""
        if not self.engine.enable_expert_parallel:
            raise ConfigError(
                "enable_dbo computes while tokens are on their way to whole experts, got no enable_expert_parallel; add it."
            )
        if self.step_times.given is not None:
            raise ConfigError("enable_dbo is timed by the roofline, and step times are given; leave one of them out.")
        if self.engine.weight_offload is not None:
            raise ConfigError(
                "enable_dbo computes the layers of two halves by turns, and how that goes with cpu_offload_gb or offload_group_size was"
                " neither read nor measured; leave one of them out."
            )

    def _check_adapters(self) -> None:
        """What vLLM asserts of adapters beside experts of data-parallel ranks (lora/layers/fused_moe.py)."""
        engine = self.engine
        whole = engine.enable_expert_parallel
        fails = {
            f"all2all_backend {engine.all2all_backend}": whole and engine.all2all_backend != "allgather_reducescatter",
            "tensor_parallel_size with enable_expert_parallel": whole and engine.tensor_parallel_size > 1,
            "fully_sharded_loras with enable_expert_parallel": whole and engine.fully_sharded_loras,
        }
        if given := next((name for name, is_there in fails.items() if is_there), None):
            raise ConfigError(
                f"enable_lora goes with no {given} on data-parallel ranks with experts, or vLLM does not start; leave one of them out."
            )

    def _check_speculation(self) -> None:
        """Raises ConfigError for what would let requests wait for ever, and for what vLLM fails of."""
        engine, drafts = self.engine, self.engine.speculation
        if self.accepted is None or drafts is None:
            return
        budget = min(self.config.token_budget, engine.max_num_batched_tokens - drafts.num_draft_slots)
        if budget < engine.uniform_query_len:
            raise ConfigError(
                f"a request that goes on with its drafts needs {engine.uniform_query_len} tokens in a step, got a budget of {budget}, and"
                " would wait for ever; raise max_num_batched_tokens and max_num_scheduled_tokens, or draft less."
            )
        if not engine.enable_chunked_prefill and budget < self.config.max_model_len - 1:
            raise ConfigError(
                f"without chunked prefill a prompt needs up to {self.config.max_model_len - 1} tokens in a step, got a budget of {budget} beside"
                " the drafts', and would wait for ever; raise max_num_batched_tokens, lower max_model_len or enable chunked prefill."
            )
        if 0 < engine.long_prefill_token_threshold < drafts.num_prefill_lookahead > 1:
            raise ConfigError(
                f"long_prefill_token_threshold must be at least the {drafts.num_prefill_lookahead} tokens that end a prompt together for"
                f" {drafts.mtp_layers} MTP modules, got {engine.long_prefill_token_threshold}, and prompts would wait for ever; raise it, or"
                " draft less."
            )
        if engine.enable_prefix_caching and self.plan.block_size < drafts.num_prefill_lookahead > 1:
            raise ConfigError(
                f"block_size must be at least the {drafts.num_prefill_lookahead} tokens that end a prompt together for {drafts.mtp_layers} MTP"
                f" modules, or vLLM does not start with prefix caching, got {self.plan.block_size}; raise it, or draft less."
            )
        if engine.weight_offload == "prefetch" and drafts.method == "draft_model":
            raise ConfigError(
                "offload_group_size goes with no draft model in vLLM, which copies the layers of one model; use cpu_offload_gb, or draft otherwise."
            )
        if engine.pipeline_parallel_size > 1 and (not engine.async_scheduling or drafts.needs_first_runner):
            raise ConfigError(
                "over pipeline stages drafts need async scheduling, which vLLM has there from 0.30.0 on for all methods but ngram and"
                f" parallel_drafting, got {drafts.method} in {engine.vllm_version}{'' if engine.async_scheduling else ' without it'}: without it drafts"
                " are verified before the token that they follow is known, and vLLM fails; change that, or leave pipeline_parallel_size out."
            )


def _what_ifs(of: Deployment) -> Modes:
    check_what_ifs(of.engine, of.plan)
    return replace(
        PLAIN,
        batches_statically=of.engine.batching == "static",
        allocates_contiguously=of.engine.kv_allocation == "contiguous",
        swap_space=swap_space(of.engine, of.plan, of.gpu),
        shares_fairly=of.engine.scheduling_policy == "fair_share",
        evicts_by=of.engine.prefix_cache_eviction if of.engine.enable_prefix_caching else "lru",
    )


def _acceptance_lengths(trace: Trace) -> Floats | None:
    """Of each answer: of the first ones, and behind these of all others."""
    lengths = trace.acceptance_length
    return None if lengths is None else np.concatenate((lengths, lengths[trace.more_answers]))


def _with_drafts(modes: Modes, of: Deployment, lengths: Floats | None, seed: int) -> Modes:
    """`lengths` are the acceptance lengths of each request, where a trace has them."""
    if of.accepted is None:
        return modes
    acceptance = DrawnAcceptance(of.accepted.rates, seed, lengths)
    return replace(modes, speculation=of.engine.speculation, acceptance=acceptance)


def _with_adapters(modes: Modes, of: Deployment) -> Modes:
    if not of.engine.enable_lora:
        return modes
    return replace(modes, lora=lora_slots(of.model, of.gpu, of.engine, of.plan.stage))


def _with_cpu_tier(modes: Modes, offload: OffloadConfig | None) -> Modes:
    return modes if offload is None else replace(modes, offload=offload, idle_sleep_s=POLLING_S)


def _with_interval(modes: Modes, of: Deployment) -> Modes:
    interval = of.engine.prefill_schedule_interval
    if interval == 1:
        return modes
    if of.lock_step:
        return replace(modes, throttle_interval=interval)
    return replace(modes, local_prefill_interval=interval)


def _with_stages(modes: Modes, engine: ResolvedEngine) -> Modes:
    """While others are in flight vLLM makes many calls that schedule nothing, each of which costs it a nap."""
    num_stages = engine.pipeline_parallel_size
    return modes if num_stages == 1 else replace(modes, num_stages=num_stages, idle_sleep_s=POLLING_S)


def deploy(
    model: ModelLike,
    gpu: GpuLike,
    engine: EngineConfig = DEFAULTS,
    *,
    vllm_version: str | None = None,
    step_times: StepTimeOptions = DEFAULT_STEP_TIMES,
    graph_memory: GraphMemoryModel = "measured",
    prediction_layers: bool = False,
) -> Deployment:
    """What `vllm serve` would make of these arguments, whether or not it fits.

    `vllm_version` None is the newest known. `graph_memory` "design" plans CUDA graphs by the original design's formula;
    `prediction_layers` loads those for multi-token prediction. Raises SimError for bad input, and for what vLLM refuses.
    """
    profile, spec = as_gpu(gpu), as_model(model, engine)
    spec = with_prediction_layers(spec) if prediction_layers else spec
    resolved = resolve_engine(engine, spec, profile, vllm_version=vllm_version)
    drafter = drafter_of(engine.speculative_config, spec)
    plan = plan_memory(spec, profile, resolved, graph_memory=graph_memory, drafter=drafter)
    fitted = replace(resolved, max_model_len=plan.max_model_len)
    assumed = (drafter.assumed,) if drafter and drafter.assumed else ()
    notes = (*engine_notes(engine, vllm_version), *layout_notes(engine, profile), *ranks_notes(engine, spec), *assumed)
    return Deployment(spec, profile, fitted, plan, step_times, notes, cpu_tier(spec, fitted, plan, profile), drafter)


def as_model(model: ModelLike, engine: EngineConfig) -> ModelSpec:
    """A model by name, path or spec; one that is looked up is quantised as the engine is told to.

    Raises ConfigError for a spec of 16-bit weights where others are asked for.
    """
    if not isinstance(model, ModelSpec):
        return load_model(model, quantization=engine.quantization)
    if engine.quantization and not model.quantization:
        raise ConfigError(
            f"quantization {engine.quantization!r} is for models that are looked up, and {model.name} is given as a ModelSpec of "
            "16-bit weights: give its name or path, or the ModelSpec of load_model(..., quantization=...)."
        )
    return model


def as_gpu(gpu: GpuLike) -> HardwareProfile:
    """A GPU by name, path or profile."""
    return gpu if isinstance(gpu, HardwareProfile) else load_gpu(gpu)
