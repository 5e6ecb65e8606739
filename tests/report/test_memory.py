import re

import sim
from sim.report.memory import memory_table

PLAN = sim.plan_memory("Llama-3.1-8B", "h100-sxm")


def gib(table: str, heading: str) -> float:
    """The figure behind a heading."""
    found = re.search(rf"^{heading} +([\d.]+)$", table, re.MULTILINE)
    assert found, table
    return float(found[1])


def test_the_headings_add_up_to_what_vllm_may_use() -> None:
    """Weights, activations, non-torch, the graph estimate and the cache fill the requested share of the GPU."""
    table = memory_table(PLAN)
    parts = [gib(table, part) for part in ("weights", "activations", "non-torch", "CUDA graphs", "KV cache")]
    assert abs(sum(parts) - gib(table, "requested")) < 0.03
    assert gib(table, "total") == 79.19


def test_explain_gives_every_line_its_formula_and_source() -> None:
    """As many lines as the ledger has."""
    table = memory_table(PLAN, explain=True).split("\n\n")[0]
    assert len(table.splitlines()) == 1 + len(PLAN.ledger)
    assert all(line.formula in table and line.source in table for line in PLAN.ledger)


def test_what_does_not_fit_says_so_instead_of_a_cache_size() -> None:
    """The reason is the plan's."""
    plan = sim.plan_memory("Llama-3.1-70B", "h100-sxm")
    assert memory_table(plan).endswith(f"Does not fit: {plan.reason}")
