"""Measures whole steps on a GPU, with PyTorch alone: `python -m benchmarks.gpu.measure OUT.json [--list | --device cpu --quick]`.

Decoder layers of real shapes with random weights: projections, attention over a cache, experts; timed eager and replayed from
a CUDA graph (plan.py says what for). The result is a JSON of rows with the GPU's name, to go into its profile with that as
source. On a CPU it runs eager steps of tiny stacks, which shows that it works and nothing else.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu.plan import Pool, Stack, Step, pools, stack_named, steps

NUM_WARM = 5
NUM_TIMED = 30
BLOCK = 16


def main() -> None:
    arguments = _arguments()
    if arguments.list:
        _list()
        return
    import torch

    device = torch.device(arguments.device)
    rows = [row for step in steps() if (row := _time_step(torch, device, step, quick=arguments.quick))]
    memory = [] if device.type == "cpu" else [_pool_bytes(torch, device, pool) for pool in pools()]
    name = "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)
    result = {"gpu": name, "torch": torch.__version__, "steps": rows, "graph_pools": memory}
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"{len(rows)} steps and {len(memory)} graph pools of {name} are in {arguments.out}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure whole decoder steps on a GPU.")
    parser.add_argument("out", type=Path, nargs="?", default=Path("gpu_steps.json"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--list", action="store_true", help="say what would be measured, without PyTorch")
    parser.add_argument(
        "--quick", action="store_true", help="tiny stacks and a step of each kind, to try the script out"
    )
    return parser.parse_args()


def _list() -> None:
    for step in steps():
        print(*step)
    for pool in pools():
        print(*pool)


def _time_step(torch: Any, device: Any, step: Step, *, quick: bool) -> dict[str, Any] | None:
    """Median and spread of the step's time in us; None for what this device cannot run."""
    if step.mode == "graph" and device.type == "cpu":
        return None
    if quick and (step.num_decodes > 8 or step.context_tokens > 256):
        return None
    stack = _tiny(stack_named(step.stack)) if quick else stack_named(step.stack)
    run = Layers(torch, device, stack, step).run
    if step.mode == "graph":
        run = _captured(torch, run).replay
    times_us = _times_us(torch, device, run)
    return {
        **step._asdict(),
        "num_tokens": step.num_tokens,
        "median_us": statistics.median(times_us),
        "best_us": min(times_us),
    }


def _tiny(stack: Stack) -> Stack:
    return stack._replace(num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=1, head_dim=16, intermediate_size=128)


class Layers:
    """The layers' weights and one step's inputs, ready to run again and again."""

    def __init__(self, torch: Any, device: Any, stack: Stack, step: Step) -> None:
        self._torch = torch
        self._stack = stack
        self._step = step
        dtype = torch.bfloat16

        def matrix(*shape: int) -> Any:
            return torch.randn(*shape, device=device, dtype=dtype) * 0.02

        heads, kv, hidden = stack.num_heads * stack.head_dim, stack.num_kv_heads * stack.head_dim, stack.hidden_size
        experts = max(1, stack.num_experts)
        self._weights = [
            {
                "qkv": matrix(hidden, heads + 2 * kv),
                "o": matrix(heads, hidden),
                "router": matrix(hidden, experts),
                "gate_up": matrix(experts, hidden, 2 * stack.intermediate_size),
                "down": matrix(experts, stack.intermediate_size, hidden),
            }
            for _ in range(stack.num_layers)
        ]
        self._hidden = matrix(step.num_tokens, hidden)
        decodes = max(1, step.num_decodes)
        self._cache = matrix(decodes, stack.num_kv_heads, 2, step.context_tokens, stack.head_dim)

    def run(self) -> Any:
        hidden = self._hidden
        for weights in self._weights:
            hidden = hidden + self._attention(hidden, weights)
            hidden = hidden + self._feed_forward(hidden, weights)
        return hidden

    def _attention(self, hidden: Any, weights: dict[str, Any]) -> Any:
        torch, stack, step = self._torch, self._stack, self._step
        normed = torch.nn.functional.rms_norm(hidden, (stack.hidden_size,))
        query = (normed @ weights["qkv"])[:, : stack.num_heads * stack.head_dim].view(
            -1, stack.num_heads, stack.head_dim
        )
        out = torch.zeros_like(query)
        attend = torch.nn.functional.scaled_dot_product_attention
        if step.num_decodes:
            keys, values = self._cache[:, :, 0], self._cache[:, :, 1]
            decoding = query[: step.num_decodes].unsqueeze(2)
            out[: step.num_decodes] = attend(decoding, keys, values, enable_gqa=True).squeeze(2)
        if step.chunk_tokens:
            chunk = query[step.num_decodes : step.num_decodes + step.chunk_tokens].transpose(0, 1).unsqueeze(0)
            seen = chunk[:, : stack.num_kv_heads]
            mixed = attend(chunk, seen, seen, is_causal=True, enable_gqa=True)
            out[step.num_decodes : step.num_decodes + step.chunk_tokens] = mixed.squeeze(0).transpose(0, 1)
        return out.reshape(-1, stack.num_heads * stack.head_dim) @ weights["o"]

    def _feed_forward(self, hidden: Any, weights: dict[str, Any]) -> Any:
        torch, stack = self._torch, self._stack
        normed = torch.nn.functional.rms_norm(hidden, (stack.hidden_size,))
        if not stack.num_experts:
            return self._expert(normed, weights, 0)
        share, chosen = torch.topk((normed @ weights["router"]).softmax(-1), stack.num_experts_per_tok)
        gates = torch.zeros(len(normed), stack.num_experts, device=normed.device, dtype=normed.dtype).scatter(
            1, chosen, share
        )
        parts = [self._expert(normed, weights, expert) * gates[:, expert, None] for expert in range(stack.num_experts)]
        return torch.stack(parts).sum(0)

    def _expert(self, normed: Any, weights: dict[str, Any], expert: int) -> Any:
        gate, up = (normed @ weights["gate_up"][expert]).chunk(2, dim=-1)
        return (self._torch.nn.functional.silu(gate) * up) @ weights["down"][expert]


def _captured(torch: Any, run: Callable[[], Any], pool: Any = None) -> Any:
    """A CUDA graph of one run, warmed up on a side stream as PyTorch asks."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        run()
    return graph


def _times_us(torch: Any, device: Any, run: Callable[[], Any]) -> list[float]:
    for _ in range(NUM_WARM):
        run()
    times = []
    for _ in range(NUM_TIMED):
        _wait(torch, device)
        start = time.perf_counter()
        run()
        _wait(torch, device)
        times.append((time.perf_counter() - start) * 1e6)
    return times


def _wait(torch: Any, device: Any) -> None:
    if device.type != "cpu":
        torch.cuda.synchronize(device)


def _pool_bytes(torch: Any, device: Any, pool: Pool) -> dict[str, Any]:
    """What the device's free memory loses by capturing these sizes into one pool, weights and inputs apart."""
    stack = stack_named(pool.stack)
    layers = [Layers(torch, device, stack, Step(pool.stack, "graph", size, 256)) for size in sorted(pool.sizes)[::-1]]
    torch.cuda.synchronize(device)
    before, handle = torch.cuda.mem_get_info(device)[0], torch.cuda.graph_pool_handle()
    graphs = [_captured(torch, one.run, handle) for one in layers]
    torch.cuda.synchronize(device)
    taken = before - torch.cuda.mem_get_info(device)[0]
    return {"stack": pool.stack, "num_graphs": len(graphs), "largest": max(pool.sizes), "bytes": taken}


if __name__ == "__main__":
    main()
