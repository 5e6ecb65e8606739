"""What `vllm bench serve` makes of a command line, restated from its datasets.py and serve.py without looking at the product."""

import argparse
import json
import random
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sim.workload.prefixes import blocks
from sim.workload.trace import Trace

Version = tuple[int, int, int]
BLOCK = 16


class Prompt(NamedTuple):
    """Tokens of any hashable kind: equal ones are equal tokens."""

    tokens: tuple[Any, ...]
    output_tokens: int
    timestamp: float | None = None


def parse(command: str, version: Version) -> argparse.Namespace:
    """Refuses what the bench of that version does not know."""
    words = shlex.split(command)
    assert words[:3] == ["vllm", "bench", "serve"]
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    datasets = ["custom", "timed_trace"] if version >= (0, 23, 0) else ["custom"]
    parser.add_argument("--dataset-name", choices=datasets, default="random")
    for name in ("--model", "--dataset-path", "--percentile-metrics", "--metric-percentiles"):
        parser.add_argument(name)
    for name, default in (("--num-prompts", 1000), ("--custom-output-len", 256), ("--seed", 0)):
        parser.add_argument(name, type=int, default=default)
    for name, rate in (("--request-rate", float("inf")), ("--burstiness", 1.0)):
        parser.add_argument(name, type=float, default=rate)
    parser.add_argument("--goodput", nargs="+")
    for name in ("--ignore-eos", "--save-result"):
        parser.add_argument(name, action="store_true")
    parser.add_argument(
        "--skip-chat-template" if version >= (0, 11, 1) else "--custom-skip-chat-template",
        action="store_true",
        dest="skip_chat_template",
    )
    if version >= (0, 11, 1):
        parser.add_argument("--disable-shuffle", action="store_true")
    if version >= (0, 10, 2):
        parser.add_argument("--ready-check-timeout-sec", type=int, default=0 if version >= (0, 14, 0) else 600)
    if version >= (0, 23, 0):
        parser.add_argument("--self-timed", action=argparse.BooleanOptionalAction, default=None)
        parser.add_argument("--timed-trace-chunk-hash-size", type=int, default=16)
        parser.add_argument("--timed-trace-sec-multiplier", type=float, default=1)
        for label in ("timestamp", "input_length", "output_length", "hash_ids"):
            parser.add_argument(f"--timed-trace-label-{label.replace('_', '-')}", default=label)
    return parser.parse_args(words[3:])


def load(command: str, version: Version) -> Trace:
    """What the line sends to the server, and when."""
    args = parse(command, version)
    assert args.num_prompts > 0
    if args.dataset_name == "timed_trace":
        prompts = timed_prompts(args)
        assert args.self_timed is not False
        return as_trace(prompts, [prompt.timestamp or 0.0 for prompt in prompts])
    assert args.skip_chat_template, "a chat template would make prompts longer"
    assert args.ignore_eos, "answers would end early"
    assert getattr(args, "ready_check_timeout_sec", 0) == 0, "the first prompt would be in the cache before the start"
    prompts = custom_prompts(args, version)
    return as_trace(prompts, send_times(len(prompts), args, version))


def timed_prompts(args: argparse.Namespace) -> list[Prompt]:
    found = []
    for line in Path(args.dataset_path).read_text().splitlines()[: args.num_prompts]:
        entry, size = json.loads(line), args.timed_trace_chunk_hash_size
        left, tokens = entry[args.timed_trace_label_input_length], []
        for chunk in entry.get(args.timed_trace_label_hash_ids, []):
            expanded = min(size, left)
            tokens += [(f"{chunk}:{expanded}", place) for place in range(expanded)]
            left -= expanded
            if left <= 0:
                break
        timestamp = entry[args.timed_trace_label_timestamp] * args.timed_trace_sec_multiplier
        found.append(Prompt(tuple(tokens), entry[args.timed_trace_label_output_length], timestamp))
    return found


def custom_prompts(args: argparse.Namespace, version: Version) -> list[Prompt]:
    """A word is a token."""
    rows = [json.loads(line) for line in Path(args.dataset_path).read_text().splitlines()]
    random.seed(0)
    if not getattr(args, "disable_shuffle", False):
        random.shuffle(rows)
    rows = rows[: args.num_prompts]
    assert len(rows) == args.num_prompts, "the bench would repeat some at random"
    takes_row = version >= (0, 14, 0) and args.custom_output_len == -1
    outputs = [row["output_tokens"] if takes_row else args.custom_output_len for row in rows]
    return [Prompt(tuple(row["prompt"].split(" ")), output) for row, output in zip(rows, outputs, strict=True)]


def send_times(count: int, args: argparse.Namespace, version: Version) -> list[float]:
    np.random.seed(args.seed)  # noqa: NPY002 - as the bench does
    if args.request_rate == float("inf"):
        return [0.0] * count
    theta = 1.0 / (args.request_rate * args.burstiness)
    gaps = [np.random.gamma(shape=args.burstiness, scale=theta) for _ in range(count)]  # noqa: NPY002
    if version < (0, 10, 0):
        return [sum(gaps[:place]) for place in range(count)]
    times = list(np.cumsum(gaps))
    return [float(time * (count / args.request_rate / times[-1])) for time in times]


def as_trace(prompts: list[Prompt], arrival_s: list[float]) -> Trace:
    """With an id a block of equal prefixes."""
    known: dict[tuple[Any, ...], int] = {}
    segments = []
    for prompt in prompts:
        ends = [*range(BLOCK, len(prompt.tokens), BLOCK), len(prompt.tokens)]
        ids = [known.setdefault(prompt.tokens[:end], len(known)) for end in ends]
        segments.append(blocks(ids, len(prompt.tokens), BLOCK))
    return Trace(
        request_id=tuple(f"bench-{row}" for row in range(len(prompts))),
        arrival_s=np.array(arrival_s),
        prompt_tokens=np.array([len(prompt.tokens) for prompt in prompts]),
        output_tokens=np.array([prompt.output_tokens for prompt in prompts]),
        segments=segments,
    )
