"""vLLM's balancer of data-parallel engines: choices recorded from the real one."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from sim.cluster.routers.vllm_dp import VllmDataParallel
from sim.engine.balancer import Balancer
from sim.engine.request import Request
from tests.cluster.routers.makers import Requests, Shown, prompts
from tests.shared import SHARED

CASES = sorted((SHARED / "golden" / "dp_lb").glob("*.json.gz"))
NODES = json.loads((Path(__file__).parents[2] / "golden" / "node_balancers.json").read_text(encoding="utf-8"))["cases"]


@pytest.mark.skipif(not CASES, reason="no recorded choices: there is no ../shared")
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.name.partition(".")[0])
def test_recorded_choices(path: Path) -> None:
    """Counts that come and go, answers, requests that name their engine, several API servers."""
    case = json.loads(gzip.decompress(path.read_bytes()))
    assert choices(case) == case["choices"]


def choices(case: dict[str, Any]) -> list[int]:
    """An id still in flight stays with its engine, and changes nothing."""
    balancer = Balancer(case["engines"], case["client_count"], case["client_index"])
    engines: dict[str, int] = {}
    found = []
    for kind, what, *rank in case["events"]:
        if kind == "counts":
            balancer.update([tuple(counts) for counts in what])
        elif kind == "finish":
            for request_id in what:
                balancer.answered(engines.pop(request_id))
        else:
            if what not in engines:
                engines[what] = rank[0] if rank else balancer.choose()
                if rank:
                    balancer.sent(rank[0])
            found.append(engines[what])
    return found


@pytest.mark.parametrize("case", NODES, ids=lambda case: f"{case['local_ranks']} from {case['first_rank']} on")
def test_recorded_choices_of_a_node(case: dict[str, Any]) -> None:
    """By one or several API servers, which are sent the counts of all ranks and take those of their node's."""
    first, size = case["first_rank"], case["local_ranks"]
    ranks = [Shown(number=number) for number in range(first, first + size)]
    sent: dict[int, tuple[Request, int]] = {}
    found: list[int] = []
    now_s = 0.0
    router = VllmDataParallel(size, case["client_count"], 1.0, lambda: now_s)
    for kind, what in case["events"]:
        if kind == "counts":
            now_s += 1
            for rank in ranks:
                rank.num_waiting, rank.num_running, rank.kv_cache_usage = what[rank.number]
        elif kind == "finish":
            request, number = sent.pop(what)
            router.answered(request, number - first)
        else:
            request = Request(what, f"r{what}", now_s, 100, 10)
            found.append(router.choose(request, ranks).number)
            sent[what] = request, found[-1]
    assert found == case["choices"]


def test_engines_that_cannot_be_chosen_are_passed_over() -> None:
    """Of equals comes first who stands at the place that moves with each request, or next after it."""
    balancer = Balancer(3)
    balancer.update([(0, 5, 0.0), (0, 1, 0.0), (0, 5, 0.0)])
    assert [balancer.choose({0, 2}) for _ in range(3)] == [0, 2, 2]


def test_counts_are_as_old_as_the_coordinators_last_message() -> None:
    """Requests sent since count as waiting; the next counts come with the next multiple of the interval."""
    replicas = [Shown(0, 5), Shown(0, 4)]
    asked = Requests("vllm_dp:interval_s=2", prompts(*[((1, 10),)] * 4), replicas)
    assert asked.choose(0) == 1
    asked.replicas[0].num_running = 0
    assert asked.choose(1) == 1
    assert asked.choose(2) == 0


def test_who_came_and_went_between_two_looks_counts_no_more() -> None:
    """The coordinator has sent counts since, though the next that anybody looks at are the same again."""
    asked = Requests("vllm_dp:interval_s=1", prompts(*[((1, 10),)] * 4), [Shown(0, 1), Shown(0, 0)])
    found = []
    for row in range(4):
        request = asked.request(row)
        found.append(asked.router.choose(request, asked.replicas).number)
        asked.router.answered(request, found[-1])
    assert found == [1, 1, 1, 1]
