"""Suggestions for an unknown flag: by meaning, by the words in it, by spelling."""

import difflib
from collections.abc import Iterable, Mapping

_MEANINGS = {
    "gpus": "num-gpus gpu-count max-gpus n-gpus total-gpus num-devices gpu-budget",  # before what says how each is used
    # of vLLM, by the names that its users, its own older versions and other servers have for them
    "tensor-parallel-size": "tp tp-size tp-degree tensor-parallel tensor-parallelism num-gpus gpu-count gpus n-gpus num-devices"
    " world-size gpus-per-replica num-shard",
    "pipeline-parallel-size": "pp pp-size pipeline-parallel num-stages",
    "max-num-seqs": "concurrency max-concurrency batch-size max-batch-size max-batch bs num-seqs max-running-requests"
    " max-concurrent-requests max-parallel parallel max-seqs max-client-batch-size",
    "max-num-batched-tokens": "token-budget max-batch-tokens max-tokens-per-batch chunk-size chunked-prefill-size"
    " max-prefill-tokens max-batch-prefill-tokens max-batch-total-tokens batch-tokens tokens-per-step max-num-tokens",
    "max-model-len": "context-length ctx-len ctx ctx-size context context-size max-context max-context-length max-seq-len"
    " max-sequence-length max-length max-total-tokens seq-len",
    "gpu-memory-utilization": "mem-fraction-static mem-fraction gpu-mem gpu-mem-util memory-fraction gpu-memory gpu-utilization"
    " kv-cache-free-gpu-mem-fraction vram cuda-memory-fraction",
    "kv-cache-memory-bytes": "kv-cache-size kv-size kv-memory kv-cache-memory",
    "num-gpu-blocks-override": "num-gpu-blocks num-blocks kv-blocks num-kv-blocks total-blocks",
    "kv-cache-dtype": "kv-dtype cache-dtype kv-type kv-precision kv-quantization kv-quant kv-cache-type kv-fp8",
    "block-size": "page-size kv-block-size tokens-per-block",
    "quantization": "quant quantize weight-dtype weights-dtype weight-precision weights-precision precision fp8 int4 awq gptq",
    "dtype": "torch-dtype model-dtype compute-dtype bf16 fp16 half",
    "enable-prefix-caching": "prefix-caching prefix-cache apc automatic-prefix-caching radix-cache disable-radix-cache",
    "prefix-cache-eviction": "eviction-policy eviction cache-eviction cache-eviction-policy radix-eviction-policy",
    "enable-chunked-prefill": "chunked-prefill chunk-prefill",
    "async-scheduling": "async overlap-schedule disable-overlap-schedule",
    "scheduling-policy": "schedule-policy scheduler policy priority",
    "enforce-eager": "eager no-cuda-graph no-cuda-graphs disable-cuda-graph disable-cudagraph no-graphs",
    "cudagraph-capture-sizes": "cuda-graph-sizes cuda-graph-bs capture-sizes graph-sizes cudagraph-sizes",
    "max-cudagraph-capture-size": "cuda-graph-max-bs max-capture-size",
    "long-prefill-token-threshold": "long-prefill-threshold max-chunk",
    "speculative-config": "speculative speculative-decoding draft draft-model spec-decode",
    "vllm-version": "version engine-version vllm",
    "model": "model-id model-name model-path checkpoint m",
    # of Servecast, by those of vLLM's benchmark and of other tools
    "gpu": "gpu-type gpu-name gpu-model hardware hw device accelerator sku gpu-profile profile",
    "trace": "dataset dataset-path dataset-name workload input input-file requests-file data trace-file bench",
    "request-rate": "rps qps rate req-rate requests-per-second arrival-rate load",
    "rate": "rps qps target-rate requests-per-second load demand traffic",
    "rate-scale": "speedup speed time-scale rate-multiplier scale load-factor",
    "limit": "num-prompts num-requests max-requests head first requests sample-size",
    "out": "output output-dir output-folder output-path out-dir result-dir save save-dir save-to save-result results o",
    "json": "format output-format as-json",
    "slo": "goodput sla target-latency latency-target ttft tpot itl e2el max-latency constraint p99",
    "objective": "goal metric optimize-for optimise-for target minimize maximize",
    "trials": "iterations num-trials n-trials budget evaluations max-trials",
    "workers": "jobs j num-workers processes n-jobs threads cores",
    "jobs": "workers j num-workers processes n-jobs threads cores parallel",
    "space": "search-space knobs parameters params grid",
    "store": "db database storage study cache",
    "replicas": "num-replicas instances num-instances data-parallel dp servers",
    "router": "routing load-balancer lb load-balancing balancer routing-policy",
    "seed": "random-seed rng",
    "step-time-model": "step-times latency-model perf-model performance-model",
    "step-log": "log schedule-log log-steps steps",
    "arrivals": "arrival-pattern arrival-process arrival arrival-distribution poisson request-rate-mode",
    "burstiness": "gamma cv burst arrival-smoothness",
    "prompt-tokens": "input-len random-input-len input-tokens input-length prompt-len isl",
    "output-tokens": "output-len random-output-len output-length max-tokens osl",
    "prefix-tokens": "random-prefix-len prefix-len shared-prefix",
    "num-requests": "num-prompts requests",
    "explain": "verbose v why details",
}
MEANINGS: Mapping[str, tuple[str, ...]] = {flag: tuple(names.split()) for flag, names in _MEANINGS.items()}
"""By flag, other names for its effect."""

MOST = 3
SHORT, ALIKE_SHORT, ALIKE = 4, 0.66, 0.75  # letters, and difflib's ratios: a slip of the fingers, not another word
_FILLERS = frozenset({"num", "n", "max", "size", "enable", "the", "of", "per", "no", "disable"})


def likely_flags(name: str, known: Iterable[str]) -> list[str]:
    """Those of the `known` flags that `name` probably stands for, best first; all without dashes before."""
    wanted, there = _plain(name), {_plain(flag): flag for flag in known}
    meant = [flag for flag, names in MEANINGS.items() if wanted in names and flag in there]
    alike = difflib.get_close_matches(
        wanted, list(there), n=MOST, cutoff=ALIKE_SHORT if len(wanted) <= SHORT else ALIKE
    )
    worded = [flag for flag in there if _says_the_same(wanted, flag)]
    return [there[flag] for flag in meant or dict.fromkeys([*alike, *worded])][:MOST]


def did_you_mean(flags: Iterable[str]) -> str:
    """` Did you mean --a or --b?`, or nothing."""
    spelled = " or ".join(f"--{flag}" for flag in flags)
    return f" Did you mean {spelled}?" if spelled else ""


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").strip("-")


def _says_the_same(one: str, other: str) -> bool:
    """Whether most words of the two are the same, in any order; words such as `max` and `num` say little."""
    words, others = _words(one), _words(other)
    return bool(words) and len(words & others) > len(words | others) / 2


def _words(name: str) -> frozenset[str]:
    return frozenset(word.removesuffix("s") for word in name.split("-") if word not in _FILLERS)
