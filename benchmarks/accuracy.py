"""Writes docs/accuracy.md.

    python -m benchmarks.accuracy ../shared/measured

Replays every measured run whose engine arguments are known, and every run in all three compositions. The bands that intervals
are made with are fitted by fit_bands.py.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks import closed_loops, front_end, left_out
from benchmarks.fit_bands import fit, known_runs
from benchmarks.fit_bands import left_out as by_other_models
from sim.cluster.front_end import FITTED_AT_TOKENS, TOKENIZED_S
from sim.measure.calibrate import Beside
from sim.measure.calibrate_kernels import calibrate_kernels
from sim.measure.published import completed
from sim.measure.runs import ClosedLoop, Run, read_runs
from sim.measure.validate import RunResult, Validation, validate
from sim.report.validation import (
    ALSO_SUMMED,
    METRICS,
    group_rows,
    markdown_table,
    peer_rows,
    scatter_plot,
    summary_rows,
    unreplayed,
)
from sim.specs.hardware import load_gpu
from sim.steptime.options import Composition
from sim.units import MS, US

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/accuracy.md"
TEXT = Path(__file__).with_name("accuracy_text.md")
PLOT = ROOT / "docs/accuracy.png"
FITS = Path(__file__).with_name("serving_fits.json")
LAUNCHES = Path(__file__).with_name("launch_fits.json")
CLOCKS = Path(__file__).with_name("clock_fits.json")
EVIDENCE = {  # of what fit_serving.py fits, by its name in the profiles
    "sampler.sort_entry_ns": "steps of models whose generation_config.json asks for top-p are longer by it for each entry of "
    "the vocabulary: vLLM before 0.17 sorts all logits; Mixtral and CodeLlama, which ask for none, are not",
    "sampler.sort_bytes_per_logit": "the same, by rows; vllm-project/vllm #33538 times that sort at 0.1 to 0.14 ms a million logits",
    "host.exposed_us": "what async scheduling does not hide behind the GPU, each step",
    "host.front_end_us": "HTTP, tokenizer, streaming: a client's time to first token beyond the engine's",
    "host.front_end_request_us": "the front end serves streams one after the other, so each that runs beside adds this",
}
ALSO_TOLD = ("ttft_p90", "ttft_p99", "num_gpu_blocks")
BANDS = {
    "step": "step times",
    "ttft": "the time to first token, beyond what step times explain",
    "tail": "P95 and P99, beyond that (the high end alone)",
    "start": "the same where a server of experts starts",
    "blocks": "KV blocks",
}
INTERVALS = """## Intervals

Each of {runs} runs with a forecast that knows only runs of other models ({models} in all): how many measured values lie inside
their 90 % intervals and how many above, how wide those are, and how far off the forecast itself is. A width is half of
high - low over the predicted, an APE the error over the measured. The two numbers of each band below are fitted to the errors of
all these runs, each with its model left out. The bands of P95 and P99 are at the high end alone: what is not simulated delays
requests.

Servers of experts start slowly: vLLM compiles the Triton kernels of experts when a batch first needs them (vllm-project/vllm
#55268, #56580). In the first stages of these runs the P99 of E2EL is 9 to 76 % above what their own step times explain, in their
second stages 3 % at most; in first stages of dense models it is 12 % at most. So P99 has the band of a start where a model has
experts and a hundredth of the requests arrive within {start_s:.0f} s of the first (P95: where a twentieth do). Of 5, 10, 15, 20, 30 and
60 s that makes the errors likeliest, whichever model is left out. The band is fitted to those first stages and to such runs of
a single stage; a server that was warmed up is likely to stay far below it.

Missed by e2el_p99, with how far the measured is beyond the interval in %: {missed}.
The worst runs above say what is known of them; GPU, family, queueing, novelty and the sampling error of a P99 (drawn again from
the simulated requests, its 95 % bound is 0.2 % above it in the median and 0.8 % at most) do not tell them from the rest. Before
the served runs were fitted again, bands that cover any share from 70 to 87 % of the errors of P99 missed the same five, at widths of 2.4 to 2.5 times the median
error; fitted without the model as well, they missed five at 2.53 times.

TTFT's slowest hundredth is not covered. Cold starts, which show in the first stages of MoE runs, seldom reach a whole run's; four
of the dense runs missed are as slow in their second stage as in their first, and why is not known."""
LEFT_OUT = """## What rules of the operators are worth

Six rules that kernel tables show, each with a cause: each token's row is gathered for each of its experts and what comes back is added up, by kernels that run before and behind
the multiplications, for experts of 16 bits (the first six rows) and of 8; Marlin's kernels unpack 4-bit weights of experts to multiply them as 16-bit ones, which
is three to five times slower than a matrix of 16 bits on Hopper and B200; vLLM's own all-reduce gives way to NCCL's at 8 MB and to others before; and
FlashAttention 2 launches as many tiles for each request as the longest chunk has. Median errors in %, without the rule, on shapes or sizes that
were held out of its fit, and with what was fitted to each of the other GPUs in the median (`python -m benchmarks.left_out`): a GPU whose own kernels were not measured
gains by sums, and little by moved rows, for which the time of a token stands in; 4-bit experts do not carry over from one architecture to another. Held out are a fifth of the shapes, the other columns have all. MXFP4 by
Triton stands in no table, and is multiplied as fast as 16 bits are; prompts of gpt-oss-120b on an H200, to which nothing is fitted, say 0.98 of that, and a chunk on an H100 takes 181 ms in the engine, 213 with the front end, where a
client measured 210 (`python -m benchmarks.mxfp4`).

The fifth is that experts are multiplied in whole tiles, of the smallest size of 8, 16, 32, 48 and 64 that the mean expert leaves a tenth of free (vLLM's marlin_moe.py), and read as far as any token chose them. Most calls of the tables give experts unequal rows, by a power law
that their collector draws (ai-dynamo/aiconfigurator, collect_moe.py): with what it draws, calls that are even and calls that are not are met by one fit, for all numbers of tokens. Before, uneven calls were taken as an even choice, those with few tokens left
out, and on Hopper and B200 15 to 25 % too slow at 32 to 256 tokens. Calls whose tokens make fewer choices than there are experts are left out now: what is drawn does not explain them. With it go three parts of the fit. Choosing experts and sorting tokens by them takes time
a token, whatever its size: 26 to 46 ns on Hopper and L40S, 6 to 28 on B200, by experts of several sizes. Rows that kernels pad or hold for each expert, in all formats. And B200's kernels, TensorRT-LLM's, read weights 10 to 29 % slower in tiles of more than 8 rows, by each of three tables.
Of slices, those that up to 8 GPUs have count: others are down to 24 columns wide. Held-out shapes are then off by 3 to 7 % in the median (A100 14), their worst tenth by 10 to 20 % and more (A100 32). Other sizes of tiles (powers of two, one size) are met about as well.
The smallest calls of few, large experts, as Llama-4-Scout has them, stay 4 to 10 % too fast on Hopper and B200.

The sixth is in attention of prompts. The softmax of a query and a key takes as long whatever their heads' size, so that heads of 64 have less of the peak than heads of 128, and heads of 256 more; tiles of small heads have 192 queries where others
have 128. Before, kernels were fitted to heads of 128 alone, and those of 64 (gpt-oss) were up to a quarter too fast, those of 256 (Gemma) 13 to 39 % too slow on Hopper and B200. A cache of fp8 has kernels of its own, FlashAttention 3's on Hopper, FlashInfer's
elsewhere, which take 9 to 24 % longer over prompts than those of 16 bits, and now a fit of their own."""
OWN_PROFILES = """## With a profile of one's own GPU

Two of the served GPUs have a layer profile of the very card. `servecast calibrate --kernels` fits the operators to it, and nothing to the runs: errors
before and after, signed, in %. The server of sg-rtx4090_aug17 had some 2,940 KV blocks, as far as what its requests held at once tells, where the ledger plans 2,700;
with `--num-gpu-blocks-override 2940` it comes within 2 %. The other run of that GPU logged 2,588, which is planned: two starts of one card differ by more than their flags explain."""
PROFILES = {"RTX4090_Llama-3.1-8B": "rtx-4090", "RTXPRO6000_Llama-3.1-8B": "rtx-pro-6000"}
SCRIPTED = """## Closed loops whose arguments are unknown

As the file has them, and where InferenceX publishes a script, with its arguments: those of the script's version that had the run's vLLM, as far as its history tells
(SemiAnalysisAI/InferenceX, perf-changelog.yaml; sim/measure/published.py, which `servecast validate` asks as well). Runs that start, median of the signed errors / MAPE in %; nothing is fitted to any of them but what B200 has beside B300 and how uneven random tokens choose experts (both above), so that but for these each model
and GPU is left out here (`python -m benchmarks.closed_loops`). Median sizes / MAPE of the 430 runs with a script, as causes were found:

| with | TTFT | TPOT |
| --- | --- | --- |
| none of them | 29 / 46 | 9.1 / 11.7 |
| experts' rows moved as well as multiplied, norms over all heads, scripts by version | 24.3 / 26.8 | 6.4 / 7.6 |
| the served runs fitted again | 23.9 / 26.7 | 5.8 / 7.0 |
| the lengths that the client drew | 24.1 / 26.7 | 5.8 / 7.0 |
| routers in 32 bits, MXFP4 padded, inputs of nvfp4 quantised | 19.9 / 23.4 | 4.7 / 5.8 |
| launches outside of graphs | 18.5 / 20.9 | 4.4 / 5.6 |
| what torch.compile fuses, waits between piecewise graphs, launches of B200's hosts | 17.1 / 19.2 | 4.5 / 5.8 |
| native kernels that quantise in tables of fp8 | 16.8 / 19.1 | 4.6 / 5.8 |
| half-empty tiles of experts | 14.4 / 17.3 | 4.6 / 6.0 |
| one rate for H100 and H200 | 14.9 / 17.5 | 4.5 / 6.0 |
| what B200's power allows | 13.2 / 16.4 | 4.5 / 6.1 |
| reading experts hides less, launches and served runs fitted again | 13.1 / 16.4 | 4.4 / 5.9 |
| scripts of Kimi-K2.5 by date | 12.6 / 14.6 | 4.5 / 6.2 |
| B200's hosts are slower for clients as well | 11.8 / 13.7 | 4.4 / 6.0 |
| a softmax whatever the heads' size, kernels of fp8 caches, all fitted again | 11.9 / 13.9 | 4.6 / 6.0 |
| unequal rows of experts in the tables, experts that random tokens choose unevenly | 10.8 / 13.1 | 3.9 / 5.0 |
| a tokenizer's time for random tokens, launches and boards fitted again | 9.6 / 12.1 | 3.8 / 4.9 |

Causes:

- **Lengths** are those that `vllm bench serve` draws with its seed of 0 (the older generator of NumPy, all prompts before all answers). So are the known ones': how far first tokens of long prompts are off at 4, 8, 16 and 32 requests
  differs by 1.7 % (standard deviation around the median of a server's) in place of 4.9, and with a seed of 1 by 3.8.
- **Routers in 32 bits**: vLLM multiplies MiniMax-M2's (and GLM-4.5's and Nemotron-H's) without tensor cores, on every GPU the whole: 13 ms of a prompt of 8,000 tokens on B200, where the rest takes 70 to 140.
- **MXFP4 is padded** to whole tiles of its kernel (vLLM's mxfp4.py): gpt-oss's experts in eight by 14 % for Marlin, 52 % for FlashInfer on B200 (14 since 0.27), in times as in [memory](memory.md#how-far-it-is-off).
- **Inputs of nvfp4** are quantised by a kernel of their own a matrix, which tables of fp8 hold and those of nvfp4 do not (on B200 the fitted launch is 7.2 us for fp8, 4.1 for bf16, 3.5 for nvfp4): Llama-3.1-70B in fp4 was 11 % too fast a token.
- **Experts of nvfp4 and fp8**: kernels that gather and add up a token's rows take their own time, and nvfp4 has a fit of its own (6 to 9 % on shapes held out). Kimi-K2.5 and MiniMax-M2.5 in fp4
  were 12 to 20 % too slow a token on B200 and B300 with one or two GPUs.
- **MiniMax-M2.5 norms queries and keys over all heads**, so that ranks send each other a third, small sum a layer (vLLM's minimax_m2.py): 7 points of its time per token on four GPUs.
- **gpt-oss-120b on Hopper** had Marlin's kernels: its script sets VLLM_MXFP4_USE_MARLIN=1 from vLLM 0.13 on; `--moe-backend marlin` is that choice here. By itself a server has Triton's, and prefills that
  llm-d measured on an H200 are those ([fleet.md](fleet.md#against-measured-pulls)).
- **Scripts have dates**: Kimi-K2.5's runs in fp4 of March and early April are from before its script asked for graphs of prompts (InferenceX #1047), so the host launched these: first tokens of prompts of 1,000 were 22 to 55 % too early
  on B200 and up to 34 on B300. They are 1 to 21 % too early and 3 to 13 % too late now.
- **Labels**: Kimi's runs in fp4 that are labelled as data-parallel and as expert-parallel took the same times, to 2 %, as did MiniMax's in fp8; their scripts have neither flag, so both ran as tensor parallelism.
- **MiniMax-M2.5 with vLLM 0.17** had Triton's experts by its script, of which B200 has no tables.
- **Llama-3.1-8B-FP8 on H200** cannot have been what the file says. At its concurrency and times (Little's law) one H200 would have prefilled {infeasible},
  of the 1,979 TFLOPS that its sheet gives: prompts were cached, or the client fell behind.
- **Tiles of experts** are multiplied whole (above): prompts of MiniMax-M2.5, gpt-oss-120b and Kimi-K2.5 give an expert 30 to 500 rows, and were timed as if all were full.
- **Rows of experts in the tables are unequal** (above): 8 to 32 rows an expert, as prompts of 1,000 have them, were 10 to 17 % too fast on B200, and decodes of 16 to 256 requests too slow.
- **B200's power** (above): its prompts were 8 to 15 points farther off than B300's.
- **First tokens** are means here, not medians: predicted medians are 20 to 40 points farther off. What is left is a tenth, most of it gpt-oss-120b's on H200 (12 to 19 % too early) and, on B200 and B300,
  MiniMax-M2.5's (5 to 12 %). InferenceX's H200 is slower than its H100: in 14 pairs of Llama-3.1-70B and gpt-oss-120b with one vLLM, layout and load its first tokens of prompts of 8,000 come 10 % later, beside H100's, than here; 0.85 of the rates of matrices would meet these
  pairs, as less power left to them would make it. llm-d's H200 does not show it (its [long prompts](fleet.md#against-measured-pulls) took no longer than here), so none is assumed. Marlin's MXFP4, which no table times, would have 0.8 of the rate of its int4 by H200's gpt-oss, 0.9 to 1 by
  H100's and 0.95 by [llm-d's](fleet.md#against-a-measured-pair-of-pools), so that it has int4's. Llama-3.1-70B in fp8 on B200 has prompts of 8,000 that are 15 % too fast: its script asks for kernels of their own for norms and for quantising (`+rms_norm`, `+quant_fp8`), of which the sums' fusion has
  only small messages, and vLLM 0.10.2 multiplied by another kernel. Steps outside of graphs take B200's servers longer than H200's, as do piecewise graphs of another server with one;
  B300's do not show it, and newer versions on B200 less (MiniMax-M2.5 in fp4 by a nightly build: 12 % too slow a token).
- **vLLM 0.12** (Qwen3) is slower by 15 to 30 %, the more so the more requests run. The likely cause, not shown: its host's work is not hidden behind the GPU, and how long that takes was fitted to 0.15."""
FRONT_END = """## The client's clock

`simulate`, `compare`, `optimize` and `capacity` have the engine's clock, and with `--clock client` that of `vllm bench serve` ([clients.md](clients.md#by-the-clients-clock)); measured runs are replayed by the clock that
they were measured by. A client sees all tokens of a request later by {request_ms:.1f} ms, {stream_us:.0f} us more for each request that streams from the server, and {token_us:.1f} us for each token by which its prompt is longer than
{tokens} (less where it is shorter). The first two are fitted to 29 of the runs below, as the table above says, and to nothing else; the third is what tokenizing takes (below), and {tokens} tokens are what the prompts of
those runs have. Mean TTFT of the served runs, by either clock:"""
BOTH_SIDES = """The only server that was watched from both sides: vLLM 0.32.0 on two CPU cores, 250 tokens a prompt, each step of its engine logged by the clock of `vllm bench serve`. Nothing is fitted to it. Medians in
ms (`python -m benchmarks.front_end`); the engine of server A runs eagerly, and its Python keeps the two cores from the front end, that of D is compiled."""
UNCOVERED = """So no difference between versions shows: {request_ms:.1f} ms were fitted to 0.15.1 on servers with H100s, 0.32.0 takes 6 to 8 on two cores, and of other versions nothing was measured on both sides; all have these figures. Not covered: a front end
that is itself the bottleneck (one event loop serves all streams of a server, and clients of many hundred streams have one as well), several API servers, chat templates and tools, TLS, gateways and routers before the
server (llm-d's adds 3 ms, [fleet.md](fleet.md#against-measured-pulls)), networks.

**A tokenizer has seen few words of a benchmark.** Text of random tokens takes it longer than text that somebody wrote: 4.0 to 4.3 and 3.7 to 3.9 us a token in the median with the vocabularies of GPT-4o and GPT-4, 2.3 to 3.1 and 2.6 to 3.1
for the pages of these docs, on one core of the machine that the servers above had (`python -m benchmarks.tokenizing` of a tokenizer.json; vocabularies of js-tiktoken 1.0.21). In those servers it took 3.1 and 3.8. So 3.5 are simulated; llm-d's guide has 2
for prompts whose text it does not say, which was taken before. With it first tokens of the closed loops below, prompts of 8,000 random tokens, were 13 ms earlier than they are now, and B200's and B300's pairs agreed less well."""
COMPOSITIONS: tuple[Composition, ...] = ("additive", "two_pass", "max")
NUM_WORST = 10

FEW_SLOW = (
    "p99 is slower than the mean tells, as in all five runs of this load: one stage of 20 minutes, whose first 12 s hold a "
    "hundredth of the requests; a cold start would do it, but a single stage cannot show one"
)
EXPLAINED = {  # by run: what its error comes from, as far as the evidence goes
    "ip-53": "near 128 running sequences: queueing for a seat, which grows without bound as the step time errs by a per cent",
    "ip-54": "close to saturation of its KV cache on an L40S: measured waits reach 5 s, the replay's stay below",
    "ip-48": "its first tokens took 4.8 steps where all other runs' took 3: an uncached prefill or a tracing delay",
    "ip-67": "TTFT of 4.7 steps with KV offloading and tracing on; output counts were re-tokenised by the client",
    "ip-20260217-155451": "output counts were re-tokenised by the client, 21 to 23 % low",
    "ip-32": "two servers of two GPUs each, not two ranks: it logged their 27,511 KV blocks, where ranks that share experts have 49,000, and has their times at half the rate",
    "ip-22": "10 % slower than four runs of the same model and workload, whose only difference is a budget of 1,024 tokens "
    "that they never reach: probably another machine",
    "ip-41": "Llama-2-70B on four A100s: decode attention and all-reduce of that GPU, whose kernel fits are the weakest "
    "(P90 41 % and 37 %)",
    "ip-7": FEW_SLOW,
    "ip-51": FEW_SLOW,
    "ip-21": FEW_SLOW,
    "ip-49": "its first requests met a cold start of up to 8 s, which is in the mean",
    "sg-rtx4090_aug17": "its server had about 9 % more KV blocks than planned: below",
    "sg-rtx4090_llama-3.1-8b": "a burst that drains for minutes: TTFT is the sum of all steps before it",
    "sg-rtxpro6000_llama-3.1-8b": "a burst; its card moves 1.6 TB/s by its maker, the one whose kernels were measured 1.8",
}


def main(folder: Path) -> None:
    serving, closed = read_runs(folder / "serving.json"), _known(read_runs(folder / "closed_loop.json"))
    served, looped = validate(serving), validate(closed)
    scatter_plot(PLOT, served.to_json(), title=f"{len(served.replayed)} served runs")
    sections = [
        _introduction(),
        *_left_out(folder.parent / "steptime"),
        *_served(served),
        *_front_end(folder, served, serving),
        *_own_profiles(folder.parent / "steptime/profiles", serving),
        *_closed(looped),
        *_scripted(folder),
        *_intervals([*serving, *closed]),
        *_compositions(serving, closed),
    ]
    PAGE.write_text("\n\n".join(sections) + "\n", encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)} and {PLOT.relative_to(ROOT)}")


def _introduction() -> str:
    """The page's text with the fitted parameters and what was left out of their fit."""
    fits = json.loads(FITS.read_text(encoding="utf-8"))
    values = fits["sampler"] | fits["host"]
    parameters = ((name, values[name.rpartition(".")[2]], why) for name, why in EVIDENCE.items())
    left_out = ((name, row["stages"], row["mape"], row["median_ape"]) for name, row in fits["left_out"].items())
    text = TEXT.read_text(encoding="utf-8").rstrip()
    text = _with_launches(text)
    text = text.replace("{parameters}", markdown_table(("parameter", "value", "evidence"), parameters))
    return text.replace("{left_out}", markdown_table(("model left out", "stages", "MAPE %", "median APE %"), left_out))


def _with_launches(text: str) -> str:
    """What fit_launches.py and fit_clocks.py found, and how far off it leaves each GPU."""
    fits = json.loads(LAUNCHES.read_text(encoding="utf-8"))
    clock = json.loads(CLOCKS.read_text(encoding="utf-8"))["b200-sxm"]
    others, b200, mape = fits["h200-sxm"], fits["b200-sxm"], fits["mape"]
    told = {
        "launch_us": others["launch_us"],
        "b200_launch_us": b200["launch_us"],
        "b200_front_end": b200["front_end"],
        "gap_us": others["gap_us"],
        "of_layer": round(others["layer_us"] / others["launch_us"], 2),
        "h200_ttft": mape["h200-sxm"]["ttft"],
        "b200_ttft": mape["b200-sxm"]["ttft"],
        "h100_ttft": mape["h100-sxm"]["ttft"],
        "h100_tpot": mape["h100-sxm"]["tpot"],
        "clock": clock["share"],
        "clock_pairs": clock["num_pairs"],
        "clock_before": clock["before"],
        "clock_after": clock["after"],
    }
    for name, value in told.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def _known(runs: Sequence[Run]) -> tuple[Run, ...]:
    return completed(run for run in runs if run.engine_args_known)


def _of_quality(validation: Validation, quality: str) -> Validation:
    return Validation(tuple(result for result in validation.results if result.run.quality == quality))


def _served(validation: Validation) -> Iterator[str]:
    best = _of_quality(validation, "A").to_json()
    yield "## Served runs\n\nQuality A, the whole run, no parameter fitted to a model or a run."
    yield _summary(best)
    yield (
        "Beside other simulators on such runs, MAPE / median APE in % (their figures: inference-sim's "
        "sim-to-real-accuracy-validation, 38 runs):"
    )
    yield markdown_table(("simulator", *METRICS), peer_rows(best))
    yield "Median APE in % by kind of run, all qualities:"
    everything = validation.to_json()
    yield markdown_table(("by", "", "runs", *METRICS), group_rows(everything))
    yield "![Measured against predicted](accuracy.png)"
    yield f"### The worst {NUM_WORST} runs\n\nBy their largest error over the four metrics, signed, in %."
    yield markdown_table(("run", "model", "GPU", *METRICS, "what probably explains it"), _worst(validation))
    yield "\n".join(f"- {sentence}" for sentence in unreplayed(everything))


def _front_end(folder: Path, served: Validation, runs: Sequence[Run]) -> Iterator[str]:
    """What the client's clock is worth on served runs, and a server seen from both sides."""
    host = load_gpu("h100-sxm").operators.host
    yield FRONT_END.format(
        request_ms=host.front_end_s / MS,
        stream_us=host.front_end_request_s / US,
        token_us=TOKENIZED_S / US,
        tokens=FITTED_AT_TOKENS,
    )
    by_engine = validate([run.model_copy(update={"clock": "engine"}) for run in runs])
    found = [
        (clock, _of_quality(of, "A").summary["ttft_mean"]) for clock, of in (("engine", by_engine), ("client", served))
    ]
    header = ("clock", "runs", "MAPE %", "median APE %")
    yield markdown_table(header, [(clock, *of) for clock, of in found])
    yield BOTH_SIDES
    yield markdown_table(front_end.HEADER, front_end.rows(folder))
    yield UNCOVERED.format(request_ms=host.front_end_s / MS)


def _closed(validation: Validation) -> Iterator[str]:
    found = validation.to_json()
    yield (
        "## Closed loops\n\nLlama-3.1-70B in fp8 with an fp8 KV cache, engine arguments known; the source does not say "
        "whether its figures are means or medians. What launches take was fitted to first tokens of those on H200 and B200, waits between graphs to "
        "times per token on H200 (above)."
    )
    yield _summary(found)
    yield markdown_table(("by", "", "runs", "ttft_mean", "tpot_mean"), group_rows(found, ("ttft_mean", "tpot_mean")))


def _left_out(folder: Path) -> Iterator[str]:
    yield LEFT_OUT
    yield markdown_table(left_out.HEADER, left_out.rows(folder))


def _own_profiles(folder: Path, runs: Sequence[Run]) -> Iterator[str]:
    """The served runs of GPUs that have a layer profile, before and after `servecast calibrate --kernels`."""
    yield OWN_PROFILES
    rows = []
    for name, gpu in PROFILES.items():
        calibration = calibrate_kernels(folder / name, gpu, [run for run in runs if run.gpu == gpu])
        for run, figures in calibration.compared.items():
            rows.append((run, *(_change(figures[metric]) for metric in METRICS)))
    yield markdown_table(("run", *METRICS), rows)


def _change(found: Beside) -> str:
    before, after = (100 * (of / found.measured - 1) for of in (found.before, found.fitted))
    return f"{before:+.1f} to {after:+.1f}"


def _scripted(folder: Path) -> Iterator[str]:
    yield SCRIPTED.format(infeasible=_infeasible(read_runs(folder / "closed_loop.json")))
    yield markdown_table(closed_loops.HEADER, closed_loops.rows(folder))


def _infeasible(runs: Sequence[Run]) -> str:
    """What the run of Llama-3.1-8B on one GPU that prefilled most, by Little's law, would have computed of prompts alone."""
    found = []
    for run in runs:
        if run.model == "nvidia/Llama-3.1-8B-Instruct-FP8" and run.engine["tensor_parallel_size"] == 1:
            figures, workload = run.measured[0].figures, run.workload
            assert isinstance(workload, ClosedLoop), "they are closed loops"
            prompt, output = (sum(of.uniform) / 2 for of in (workload.prompt_tokens, workload.output_tokens))
            request_s = (figures["ttft_mean"] + (output - 1) * figures["tpot_mean"]) / 1000
            found.append(workload.concurrency / request_s * prompt)
    tokens_s = max(found)
    return f"{tokens_s:,.0f} tokens/s, {tokens_s * 2 * 7.5e9 / 1e12:,.0f} TFLOPS"


def _compositions(serving: Sequence[Run], closed: Sequence[Run]) -> Iterator[str]:
    yield (
        "## Compositions\n\nMedian APE in % when mixed steps are timed as one pass (`additive`), two (`two_pass`), or the "
        "longer of two (`max`)."
    )
    rows = [
        (name, *(validation.summary[metric].median_ape for metric in ("ttft_mean", "tpot_mean")))
        for name, validation in ((name, validate([*serving, *closed], composition=name)) for name in COMPOSITIONS)
    ]
    yield markdown_table(("composition", "ttft_mean", "tpot_mean"), rows)


def _summary(found: dict[str, object]) -> str:
    rows = [row for row in summary_rows(found) if row[0] in {*METRICS, *ALSO_SUMMED}]
    return markdown_table(("metric", "runs", "MAPE %", "median APE %"), rows)


def _worst(validation: Validation) -> Iterator[tuple[object, ...]]:
    def largest(result: RunResult) -> float:
        errors = result.whole.errors if result.whole else {}
        return max((abs(errors[metric]) for metric in METRICS if metric in errors), default=0.0)

    for result in sorted(validation.results, key=largest, reverse=True)[:NUM_WORST]:
        errors = result.whole.errors if result.whole else {}
        signed = [f"{errors[metric]:+.1f}" if metric in errors else "-" for metric in METRICS]
        yield (
            result.run.id,
            result.run.model.rpartition("/")[2],
            result.run.gpu,
            *signed,
            EXPLAINED.get(result.run.id, ""),
        )


def _intervals(runs: Sequence[Run]) -> Iterator[str]:
    """How often measured values lie inside the intervals that a forecast has where no run of its model is known."""
    known = list(known_runs(runs))
    found = validate([run for run in runs if run.id in {one.id for one in known}], judge=by_other_models(known))
    bands, start_s = fit(known)
    models = len({one.model for one in known})
    yield INTERVALS.format(runs=len(known), models=models, start_s=start_s, missed=_missed(found, "e2el_p99"))
    header = ("metric", "runs", "covered %", "above %", "median width %", "median APE %", "width / APE")
    yield markdown_table(header, (_coverage_row(found, metric) for metric in (*METRICS, *ALSO_TOLD)))
    rows = ((what, f"{100 * bands[name].base:.1f}", f"{100 * bands[name].each:.0f}") for name, what in BANDS.items())
    yield markdown_table(
        ("band of", "+-% where such runs were measured", "wider by % for each thing that is new"), rows
    )


def _missed(found: Validation, metric: str) -> str:
    """The runs measured outside their interval, with how far beyond the nearer end, in per cent."""
    missed = {}
    for result, one in found.replayed:
        if metric in one.measured:
            value, (low, high) = one.measured[metric], one.intervals[metric]
            nearest = min(max(value, low), high)
            missed[result.run.id] = 100 * (value / nearest - 1)
    return ", ".join(f"{name} {far:+.0f}" for name, far in missed.items() if far)


def _coverage_row(found: Validation, metric: str) -> tuple[object, ...]:
    """Widths are half of high - low, in per cent of the predicted; errors are of the measured."""
    rows = [
        (one.intervals[metric], one.predicted[metric], one.measured[metric])
        for _, one in found.replayed
        if metric in one.measured
    ]
    covered = 100 * float(np.mean([low <= measured <= high for (low, high), _, measured in rows]))
    above = 100 * float(np.mean([measured > high for (_, high), _, measured in rows]))
    width = 100 * float(np.median([(high - low) / 2 / predicted for (low, high), predicted, _ in rows]))
    error = found.summary[metric].median_ape
    return metric, len(rows), covered, above, width, error, width / error


if __name__ == "__main__":
    main(Path(sys.argv[1]))
