"""What tokenizing a prompt takes a front end: `python -m benchmarks.tokenizing TOKENIZER.json ...`.

Benchmarks send text of random tokens, which has few words that a tokenizer has seen a moment ago: tokens that follow each other in the vocabulary, as `vllm bench serve`
draws them, turned into text. Beside it the pages of docs, as text that somebody wrote. CPU microseconds a token on one core, median and extremes of REPEATS prompts, through
transformers as vLLM calls it. `sim/cluster/front_end.py` holds a number for random tokens.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sim.report.tables import aligned
from sim.units import US

LENGTHS = (1_000, 8_000)
REPEATS = 40
CHARACTERS_A_TOKEN = 4
PAGES = Path(__file__).parents[1] / "docs"
HEADER = ("tokenizer", "text", "tokens", "us a token", "least", "most")


def main(paths: Sequence[Path]) -> None:
    from transformers import PreTrainedTokenizerFast

    rows = (row for path in paths for row in _rows(path.stem, PreTrainedTokenizerFast(tokenizer_file=str(path))))
    print(aligned(HEADER, rows))


def _rows(name: str, tokenizer: Any) -> Iterator[tuple[object, ...]]:
    drawn = np.random.default_rng(0)
    pages = "".join(page.read_text(encoding="utf-8") for page in sorted(PAGES.glob("*.md")))
    for length in LENGTHS:
        for kind, prompts in (
            ("random", _random(tokenizer, length, drawn)),
            ("written", _written(pages, length, drawn)),
        ):
            taken = [_taken(tokenizer, prompt) for prompt in prompts]
            tokens, times_us = np.array([count for count, _ in taken]), np.array([taken_s / US for _, taken_s in taken])
            each = times_us / tokens
            figures = (f"{value:.1f}" for value in (np.median(each), each.min(), each.max()))
            yield name, kind, round(float(tokens.mean())), *figures


def _random(tokenizer: Any, length: int, drawn: np.random.Generator) -> list[str]:
    firsts = drawn.integers(tokenizer.vocab_size, size=REPEATS).tolist()
    return [tokenizer.decode([(first + at) % tokenizer.vocab_size for at in range(length)]) for first in firsts]


def _written(pages: str, length: int, drawn: np.random.Generator) -> list[str]:
    size = length * CHARACTERS_A_TOKEN
    starts = drawn.integers(len(pages) - size, size=REPEATS).tolist()
    return [pages[start : start + size] for start in starts]


def _taken(tokenizer: Any, prompt: str) -> tuple[int, float]:
    begun_s = time.process_time()
    tokens = tokenizer(prompt)["input_ids"]
    return len(tokens), time.process_time() - begun_s


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
