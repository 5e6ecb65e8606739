"""What is found in a store of several KV groups, loaded and stored, as vLLM's own coordinator has said it."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sim.engine.config import KVGroup
from sim.engine.request import Request
from sim.engine.walking.store_lookup import StoreLookup
from tests.configs import scheduler_config

GOLDEN = Path(__file__).parents[1] / "golden/store_lookups.json.gz"
CASES: list[dict[str, Any]] = json.loads(gzip.decompress(GOLDEN.read_bytes()))["cases"]

STATES = KVGroup(2, keeps_states=True)


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_what_a_store_has_and_gets(case: dict[str, Any]) -> None:
    """250 draws of KV groups, of what is there and of what stays: the hit, the blocks of each group that it loads, and those that are stored."""
    block_size, interval = case["block_size"], case["retention_interval"]
    config = scheduler_config(block_size=block_size)
    engine = replace(config.engine, prefix_cache_retention_interval="None" if interval is None else interval)
    groups = tuple(STATES if window == "states" else KVGroup(window) for window in case["windows"])
    lookup = StoreLookup(replace(config, kv_groups=groups, engine=engine), block_size)
    request = Request(0, "asks", 0.0, case["prompt_tokens"], 1)
    numbers, num_blocks = range(len(groups)), case["prompt_tokens"] // block_size
    keys = [[block * len(groups) + number for block in range(num_blocks)] for number in numbers]
    there = {keys[number][block] for number in numbers for block in case["there"][number]}
    found = lookup.num_found(there.__contains__, keys, lookup.most(case["prompt_tokens"]))
    assert found * block_size == case["hit_tokens"]
    loaded = [list(range(lookup.first_needed(number, found * block_size), found)) for number in numbers]
    assert loaded == case["loaded"]
    prompt = case["prompt_tokens"]
    ranges = [lookup.stored(number, request, case["first_chunk"], num_blocks, prompt) for number in numbers]
    assert [[block for start, end in one for block in range(start, end)] for one in ranges] == case["stored"]
