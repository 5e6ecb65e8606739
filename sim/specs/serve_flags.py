"""The flags of `vllm serve`: those that become engine arguments, those that change nothing here, those not simulated.

Names as in the command-line reference of vLLM 0.8.5 and of the newest version; flags that only older versions have stay,
so that old command lines can be replayed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sim.specs.arguments import Argument, Kind
from sim.specs.engine import ARGUMENTS

Arity = Literal["none", "one", "many"]
_ARITIES: Mapping[Kind, Arity] = {"switch": "none", "sizes": "many", "texts": "many"}


class EngineFlag(NamedTuple):
    """A flag that sets the EngineConfig field of the same name."""

    field: str
    argument: Argument

    @property
    def name(self) -> str:
        return self.field.replace("_", "-")

    @property
    def arity(self) -> Arity:
        return _ARITIES.get(self.argument.kind, "one")


@dataclass(frozen=True, slots=True)
class UnsimulatedFlag:
    """A flag whose effect is not simulated; `harmless` are the values that leave it off."""

    what: str
    arity: Arity = "one"
    harmless: tuple[str, ...] = ()


ENGINE_FLAGS: Mapping[str, EngineFlag] = {
    flag.name: flag for flag in (EngineFlag(*item) for item in ARGUMENTS.items()) if flag.argument.is_flag
}
"""In the order of EngineConfig."""

OTHER_FLAGS: Mapping[str, Arity] = {
    "model": "one",
    "config": "one",
    "preset": "one",
    "vllm-version": "one",
    "compilation-config": "one",
    "kv-transfer-config": "one",
    "speculative-config": "one",
    "spec-method": "one",
    "spec-model": "one",
    "spec-tokens": "one",
    "speculative-model": "one",
    "num-speculative-tokens": "one",
    "data-parallel-multi-port-external-lb": "none",
    "data-parallel-rank": "one",
    "data-parallel-start-rank": "one",
    "headless": "none",
    "eplb-config": "one",
    "num-redundant-experts": "one",
    "optimization-level": "one",
    "dtype": "one",
}
"""Flags that need a rule of their own, in serve_command.py."""

DEFAULT_BACKEND_NAMES = ("naive", "pplx")
"""Values of --all2all-backend for which vLLM takes its default, by 0.19 at the latest."""

SHORT_FLAGS: Mapping[str, str] = {
    "tp": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "dp": "data-parallel-size",
    "dpn": "data-parallel-rank",
    "dpr": "data-parallel-start-rank",
    "dpl": "data-parallel-size-local",
    "dpa": "data-parallel-address",
    "dpp": "data-parallel-rpc-port",
    "dpb": "data-parallel-backend",
    "dph": "data-parallel-hybrid-lb",
    "dpe": "data-parallel-external-lb",
    "dpm": "data-parallel-multi-port-external-lb",
    "dcp": "decode-context-parallel-size",
    "pcp": "prefill-context-parallel-size",
    "ep": "enable-expert-parallel",
    "n": "nnodes",
    "r": "node-rank",
    "q": "quantization",
    "O": "optimization-level",
    "cc": "compilation-config",
    "ac": "attention-config",
    "sc": "speculative-config",
    "asc": "api-server-count",
}
ALIASES: Mapping[str, str] = {"device-memory-utilization": "gpu-memory-utilization"}

SPECULATIVE_KEYS: Mapping[str, str] = {
    "spec-method": "method",
    "spec-model": "model",
    "spec-tokens": "num_speculative_tokens",
    "speculative-model": "model",
    "num-speculative-tokens": "num_speculative_tokens",
}
"""Flags that are a key of --speculative-config each: the newest ones, and those of the versions before it."""

COMPILATION_FIELDS = ("cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size")
"""Keys of --compilation-config that are engine arguments here."""

_COMPILATION_KEYS = """
    mode level backend custom_ops splitting_ops compile_mm_encoder use_inductor compile_sizes inductor_compile_config
    inductor_passes use_inductor_graph_partition pass_config cache_dir local_cache_dir debug_dump_path
    compile_cache_save_format cudagraph_num_of_warmups cudagraph_copy_inputs cudagraph_specialize_lora
    dynamic_shapes_config fast_moe_cold_start
    """
OTHER_COMPILATION_KEYS = tuple(_COMPILATION_KEYS.split())
"""Those that change nothing in the simulation."""

UNSIMULATED: Mapping[str, UnsimulatedFlag] = {
    "decode-context-parallel-size": UnsimulatedFlag("context parallelism", harmless=("1",)),
    "prefill-context-parallel-size": UnsimulatedFlag("context parallelism", harmless=("1",)),
    "nnodes": UnsimulatedFlag("a server over several nodes", harmless=("1",)),
    "enable-elastic-ep": UnsimulatedFlag("expert parallelism", "none"),
    "ubatch-size": UnsimulatedFlag("micro-batches other than the two of --enable-dbo", harmless=("0", "1")),
    "diffusion-config": UnsimulatedFlag("diffusion decoding"),
    "ec-transfer-config": UnsimulatedFlag("encoder cache transfer"),
    "kv-offloading-backend": UnsimulatedFlag("KV offloading other than vLLM's own", harmless=("native",)),
    "stream-interval": UnsimulatedFlag("streaming several tokens at once", harmless=("1",)),
    "disable-hybrid-kv-cache-manager": UnsimulatedFlag("one block table for all kinds of attention", "none"),
    "disable-sliding-window": UnsimulatedFlag("a model without its sliding window", "none"),
    "hf-overrides": UnsimulatedFlag("an altered model config", harmless=("{}",)),
    "rope-scaling": UnsimulatedFlag("an altered model config"),
    "kv-cache-dtype-skip-layers": UnsimulatedFlag("KV caches of several dtypes", "many"),
    "kv-sharing-fast-prefill": UnsimulatedFlag("KV sharing", "none"),
    "quantization-config": UnsimulatedFlag("quantisation by layer", harmless=("{}",)),
    "runner": UnsimulatedFlag("anything but text generation", harmless=("auto", "generate")),
    "convert": UnsimulatedFlag("anything but text generation", harmless=("auto", "none")),
    "task": UnsimulatedFlag("anything but text generation", harmless=("auto", "generate")),
    "mm-encoder-only": UnsimulatedFlag("anything but text generation", "none"),
    "scheduler-cls": UnsimulatedFlag("another scheduler"),
    "num-scheduler-steps": UnsimulatedFlag("the engine before V1", harmless=("1",)),
}

DEFAULT_KERNELS = "step times are those of the default kernels"
APPROXIMATED: Mapping[str, tuple[Arity, str]] = {
    "limit-mm-per-prompt": ("one", "a vision tower stays counted in the weights"),
    "attention-backend": ("one", DEFAULT_KERNELS),
    "attention-config": ("one", DEFAULT_KERNELS),
    "linear-backend": ("one", DEFAULT_KERNELS),
    "kernel-config": ("one", DEFAULT_KERNELS),
    "disable-custom-all-reduce": ("none", DEFAULT_KERNELS),
    "disable-cascade-attn": ("none", DEFAULT_KERNELS),
    "mamba-cache-dtype": ("one", "the state keeps the model's own dtype"),
    "mamba-ssm-cache-dtype": ("one", "the state keeps the model's own dtype"),
    "mamba-cache-mode": ("one", "the state is kept as by default"),
}
"""Flags that are accepted without their effect, with what holds instead."""

_IGNORED: Mapping[Arity, str] = {
    "none": """
        aggregate-engine-logging allow-credentials allow-deprecated-quantization cudagraph-metrics
        disable-chunked-mm-input disable-fastapi-docs
        disable-frontend-multiprocessing disable-log-requests disable-log-stats disable-uvicorn-access-log
        enable-auto-tool-choice enable-cumem-allocator enable-ep-weight-filter enable-flashinfer-autotune
        enable-force-include-usage enable-layerwise-nvtx-tracing enable-log-deltas enable-log-outputs
        enable-log-requests enable-logging-iteration-details enable-mfu-metrics enable-mm-embeds enable-offline-docs
        enable-per-request-metrics enable-prompt-embeds enable-prompt-tokens-details enable-reasoning
        enable-request-id-headers enable-scale-out enable-server-load-tracking enable-sleep-mode enable-ssl-refresh
        enable-tokenizer-info-endpoint enable-trace-replay exclude-tools-when-tool-choice-none
        fail-on-environ-validation grpc interleave-mm-strings kv-cache-metrics log-error-stack numa-bind
        ray-workers-use-nsight return-tokens-as-token-ids skip-mm-profiling skip-tokenizer-init tokens-only
        trust-remote-code trust-request-chat-template use-tqdm-on-load use-v2-block-manager
        """,
    "one": """
        additional-config allowed-local-media-path api-server-count aux-output-config chat-template
        chat-template-content-format code-revision config-format cpu-distributed-timeout-seconds
        data-parallel-address data-parallel-backend data-parallel-rpc-port data-parallel-supervisor-port
        default-chat-template-kwargs disable-access-log-for-endpoints
        distributed-executor-backend distributed-timeout-seconds download-dir
        expert-placement-strategy fingerprint-mode fingerprint-value gdn-prefill-backend generation-config
        guided-decoding-backend h11-max-header-count h11-max-incomplete-event-size hf-config-path hf-token host
        io-processor-plugin jit-monitor-mode kv-cache-metrics-sample kv-events-config load-format log-config-file
        logprobs-mode lora-dtype mamba-backend master-addr master-port max-log-len max-logprobs
        max-long-partial-prefills max-num-partial-prefills max-parallel-loading-workers
        max-seq-len-to-capture media-io-kwargs mm-encoder-attn-backend mm-encoder-tp-mode mm-processor-cache-gb
        mm-processor-cache-type mm-processor-kwargs model-impl model-loader-extra-config node-rank
        observability-config otlp-traces-endpoint override-generation-config per-request-spec-decode-metrics
        port prefix-caching-hash-algo profiler-config pt-load-map-location reasoning-config reasoning-parser
        reasoning-parser-plugin renderer-num-workers response-role revision root-path safetensors-load-strategy
        seed show-hidden-metrics-for-version shutdown-timeout sse-keep-alive-interval ssl-ca-certs ssl-cert-reqs
        ssl-certfile ssl-ciphers ssl-keyfile structured-outputs-config tokenizer tokenizer-mode
        tokenizer-revision tool-call-parser tool-parser-plugin tool-server tool-strict-level uds
        uvicorn-log-level weight-transfer-config worker-cls worker-extension-cls
        """,
    "many": """
        lora-modules
        allowed-headers allowed-media-domains allowed-methods allowed-origins api-key collect-detailed-traces
        device-ids ignore-patterns logits-processors middleware numa-bind-cpus numa-bind-nodes served-model-name
        """,
}
IGNORED: Mapping[str, Arity] = {name: arity for arity, names in _IGNORED.items() for name in names.split()}
"""Flags that change nothing in the simulation."""


def arity_of(name: str) -> Arity | None:
    """How many values the flag of that name takes, or None for a flag that vLLM does not have."""
    if name in ENGINE_FLAGS:
        return ENGINE_FLAGS[name].arity
    if name in UNSIMULATED:
        return UNSIMULATED[name].arity
    if name in APPROXIMATED:
        return APPROXIMATED[name][0]
    return OTHER_FLAGS.get(name) or IGNORED.get(name)


def known_flags() -> list[str]:
    """All flags as they are spelled, for suggestions."""
    return [f"--{name}" for name in (*ENGINE_FLAGS, *OTHER_FLAGS, *UNSIMULATED, *APPROXIMATED, *IGNORED)]
