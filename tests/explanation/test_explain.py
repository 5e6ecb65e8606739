"""What is tried and what comes of it, the life of a request, and folders of results."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sim
from sim.arguments import arguments_of
from sim.errors import ConfigError, SimError
from sim.explanation.explain import Explanation
from sim.explanation.from_folder import simulated_again
from sim.explanation.page import explained_page
from sim.explanation.parts import Span, total
from sim.explanation.rules import worth_a_try
from sim.explanation.story import Story
from sim.explanation.trials import try_out
from sim.memory.layerwise_offload import Savings
from sim.report.page.blocks import Bars, Grid
from sim.report.whole_folder import write_json
from sim.specs.hardware import profile_yaml
from sim.specs.speculative_config import SpeculativeConfig
from tests.cli.conftest import Servecast, servecast
from tests.explanation.conftest import run, timed, trace

__all__ = ["servecast"]


def test_each_change_is_simulated_and_its_gain_is_told(crowded: sim.Result) -> None:
    """Requests wait for a seat: more of them help, and so does a second replica. More GPUs for each step do not, as step times are given."""
    trials = {trial.change.name: trial for trial in try_out(crowded, worth_a_try(crowded))}
    assert [name for name, trial in trials.items() if trial.helps] == ["max_num_seqs=4", "replicas=2", "max_num_seqs=2"]
    changed = sim.simulate(**{**crowded.asked, "replicas": 2})
    for metric, found in trials["replicas=2"].differences.items():
        assert found.change == pytest.approx(changed.summary[metric] / crowded.summary[metric] - 1)
    assert {found.verdict for found in trials["tensor_parallel_size=2"].differences.values()} == {"same"}
    text = str(sim.explain(crowded))
    assert "replicas=2 (2 x the GPUs)" in text
    assert "Tried, and no better: tensor_parallel_size=2." in text


def test_limits_are_judged_too() -> None:
    """Of three requests one keeps a limit of 3 s on its TTFT, and with four seats all do."""
    requests = trace(("A", 0.0, 8, 5), ("B", 2.5, 8, 3), ("C", 2.5, 8, 3))
    result = run(requests, timed(1.0), max_num_seqs=1, more={"slo": ["ttft_p99=3s"]})
    (trial,) = [one for one in try_out(result, worth_a_try(result)) if one.change.name == "max_num_seqs=4"]
    assert trial.differences["request_goodput"].change == pytest.approx(3 * 11 / 6 - 1)
    assert "goodput" in str(sim.explain(result))


def names(result: sim.Result) -> set[str]:
    return {change.name.partition("=")[0] for change in worth_a_try(result)}


@pytest.mark.parametrize(
    ("engine", "named", "not_named"),
    [
        # a step takes two of the long prompts' tokens, the rest wait for budget
        ({"max_num_batched_tokens": 8, "max_num_seqs": 4}, "max_num_batched_tokens", "max_num_seqs"),
        (
            {"num_gpu_blocks_override": 6, "enable_prefix_caching": False, "max_model_len": 80},
            "gpu_memory_utilization",
            "max_num_batched_tokens",
        ),
        ({"max_num_seqs": 1}, "max_num_seqs", "gpu_memory_utilization"),
    ],
)
def test_what_limits_says_what_is_tried(engine: dict[str, Any], named: str, not_named: str) -> None:
    requests = trace(*((f"r{number}", 0.0, 40, 20) for number in range(4)))
    found = names(run(requests, timed(1.0), **engine))
    assert named in found
    assert not_named not in found


def test_what_is_there_is_not_named_again() -> None:
    """FP8 weights and KV, caching, another router behind which nothing would change."""
    deployed = ("Llama-3.1-8B", "h100-sxm", "multi-turn")
    bare = sim.EngineConfig(enable_prefix_caching=False)
    assert {"enable_prefix_caching", "quantization", "kv_cache_dtype", "tensor_parallel_size", "replicas"} <= names(
        sim.simulate(*deployed, limit=20, intervals=False, engine=bare)
    )
    small = sim.EngineConfig(quantization="fp8", kv_cache_dtype="fp8")
    found = worth_a_try(sim.simulate(*deployed, limit=20, intervals=False, engine=small, replicas=2, router="llm_d"))
    assert {"router=least_loaded", "router=sglang_cache_aware", "replicas=4"} <= {change.name for change in found}
    assert {"quantization", "kv_cache_dtype", "enable_prefix_caching"}.isdisjoint(
        change.name.partition("=")[0] for change in found
    )


def test_what_a_lost_replica_had_done_is_no_part_of_the_answer() -> None:
    """Lost at 2.5 s, in its third step, the machine is back at 3.5: a decode, and all until it begins again, was in vain."""
    fleet = {"faults": [{"at_s": 2.5, "replica": 0, "for_s": 1}], "start_up": 0}
    found = sim.explain(run(trace(("A", 0.0, 8, 5)), timed(1.0), more={"fleet": fleet}), "A")
    assert found.parts_ms == {"lost": 2500.0, "host": 6000.0}


def test_a_folder_that_is_not_there(servecast: Servecast) -> None:
    assert (
        "there is no nothing; name a folder that `servecast simulate --out` wrote"
        in servecast("explain", "nothing").err
    )


def test_what_cannot_be_simulated_says_why() -> None:
    """More ranks than the model has heads."""
    result = run(trace(("A", 0.0, 8, 5), ("B", 0.0, 8, 5)), timed(1.0), max_num_seqs=1, tensor_parallel_size=32)
    refused = [trial for trial in try_out(result, worth_a_try(result)) if trial.refused]
    assert [trial.change.name for trial in refused] == ["tensor_parallel_size=64"]
    assert "tensor_parallel_size=64 cannot be simulated: " in str(sim.explain(result))


def test_the_life_of_a_request(crowded: sim.Result) -> None:
    """B queues for 2.5 s, of which the seat was taken for 2, has its prompt in one step, and two more tokens in two."""
    found = sim.explain(crowded, "B")
    assert isinstance(found, Story)
    assert found.arrival_s == 2.5
    assert [(event.at_ms, event.what) for event in found.events] == [
        (0.0, "arrived: 8 prompt tokens, 3 to be generated"),
        (2500.0, "first scheduled after 2,500.0 ms in the queue (2,000.0 ms for max_num_seqs)"),
        (2500.0, "step of 1,000.0 ms: 8 of its tokens behind 0, beside 0 tokens of 0 others"),
        (3500.0, "first token, TTFT 3,500.0 ms"),
        (5500.0, "2 more tokens, TPOT 1,000.00 ms, the longest gap 1,000.0 ms"),
        (5500.0, "finished with 3 tokens, E2EL 5,500.0 ms"),
    ]
    assert found.parts_ms == {"queue_max_num_seqs": 2000.0, "queue_other": 500.0, "host": 3000.0}


def test_the_life_of_a_request_that_is_preempted_and_of_one_that_is_rejected() -> None:
    result = run(
        trace(("A", 0.0, 16, 4), ("B", 0.0, 16, 4), ("C", 0.0, 90, 4)),
        timed(1.0),
        num_gpu_blocks_override=4,
        enable_prefix_caching=False,
        max_model_len=32,
    )
    told = [event.what for event in sim.explain(result, "B").events]
    assert "preempted: its KV blocks went to others" in told
    assert "step of 1,000.0 ms: 17 of its tokens behind 0, beside 0 tokens of 0 others" in told
    assert str(sim.explain(result, "C").events[-1].what).startswith("rejected: ")


def test_drafts_are_no_chunks() -> None:
    """A verification of three tokens is a decode."""
    drafting = SpeculativeConfig.parse({"method": "ngram", "num_speculative_tokens": 2})
    result = run(trace(("A", 0.0, 8, 9)), timed(1.0), speculative_config=drafting, more={"acceptance": 2.0})
    told = [event.what.split()[0] for event in sim.explain(result, "A").events]
    assert told == ["arrived:", "first", "step", "first", "8", "finished"]


def test_the_life_of_a_request_of_a_fleet() -> None:
    """Where its router sent it, and what load all replicas had."""
    requests = trace(*((name, number / 10, 8, 5) for number, name in enumerate("ABC")))
    result = run(requests, timed(1.0), more={"replicas": 2, "router": "round_robin"})
    told = [event.what for event in sim.explain(result, "C").events]
    assert told[1] == "sent to replica 0 of 2 by round_robin (running + waiting of each then: 0: 1+0, 1: 1+0)"
    split = {"pools": [{"role": "prefill"}, {"role": "decode"}]}
    handed = sim.simulate("Llama-3.1-8B", "h100-sxm", "chat", limit=3, fleet=split, intervals=False)
    told = [event.what for event in sim.explain(handed, "r0").events]
    assert told[1].startswith("sent its prompt to replica 0, its answer to replica 1 of 2 by least_loaded")
    assert any(what.startswith("step on replica 0") for what in told)


def test_a_request_that_is_not_there(crowded: sim.Result) -> None:
    with pytest.raises(ConfigError, match=r"the trace has no request 'b', its names are like 'A'. Did you mean B"):
        sim.explain(crowded, "b")


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A run whose trace is a file."""
    (tmp_path / "trace.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,100,8\n0.1,200,8\n0.2,3000,8\n")
    engine = sim.EngineConfig(max_num_seqs=2, cudagraph_capture_sizes=(1, 2))
    run = sim.simulate(
        "Llama-3.1-8B",
        "h100-sxm",
        tmp_path / "trace.csv",
        engine=engine,
        users=2,
        think_time="exponential:0.1",
        slo=["ttft_p99=1s"],
        intervals=False,
        seed=3,
    )
    (tmp_path / "run").mkdir()
    write_json(tmp_path / "run" / "summary.json", run.summary)  # what is read of the folder
    return tmp_path / "run"


def test_a_folder_is_simulated_again(written: Path) -> None:
    """To the same summary."""
    again, told = simulated_again(written).summary, json.loads((written / "summary.json").read_text())
    assert {**json.loads(json.dumps(again)), "wall_time_s": 0.0} == {**told, "wall_time_s": 0.0}
    assert str(sim.explain(written, "r1")).startswith("r1, arrived")


@pytest.mark.parametrize(
    "how",
    [
        {"replicas": 2, "router": "llm_d:queue=3"},
        {"fleet": {"pools": [{"replicas": 1}, {"gpu": "h200-sxm", "engine": {"max_num_seqs": 4}}]}, "rate_scale": 2.0},
        {"fleet": {"kv_pull": {"via": "host"}, "pools": [{"replicas": 2}]}},
        {"request_rate": float("inf"), "limit": 3, "sampling": "greedy", "vllm_version": "0.15.1"},
        {
            "engine": sim.EngineConfig(
                speculative_config=SpeculativeConfig.parse({"method": "ngram", "num_speculative_tokens": 2})
            ),
            "acceptance": (0.6, 0.3),
        },
        {"replicas": 2, "kv_store": "capacity_gib=1,lookup_ms=2"},
        {"replicas": 2, "kv_pull": {"kv_recompute_threshold": 16}},
        {"engine": sim.EngineConfig(data_parallel_size=2), "max_concurrency": 2},
        {
            "engine": sim.EngineConfig(max_model_len=16384),
            "layerwise": {"num_kv_buffers": 3, "savings": Savings.parse("rope_in_place")},
        },
        {"open_loop": True},
    ],
)
def test_a_summary_tells_all_arguments(how: dict[str, Any]) -> None:
    """Of a run by names: the same summary comes of them."""
    told = sim.simulate("Llama-3.1-8B", "h100-sxm", "chat", **{"limit": 5, "intervals": False, **how}).summary
    again = sim.simulate(**arguments_of(json.loads(json.dumps(told["arguments"])))).summary
    assert {**again, "wall_time_s": 0.0} == {**told, "wall_time_s": 0.0}


def test_how_a_trace_was_read_and_a_gpu_at_another_price_are_told(tmp_path: Path) -> None:
    """A GPU of one's own by its path."""
    (tmp_path / "log.csv").write_text("at,in,out\n0,100,8\n100,200,8\n200,300,8\n")
    (tmp_path / "gpu.yaml").write_text(profile_yaml("h100-sxm").replace("name: h100-sxm", "name: ours"))
    trace = sim.read_trace(tmp_path / "log.csv", columns="arrival=at:ms,prompt=in,output=out", limit=2)
    gpu = sim.HardwareProfile.load(tmp_path / "gpu.yaml").at_price(1.5)
    told = sim.simulate("Llama-3.1-8B", gpu, trace, intervals=False).summary
    again = sim.simulate(**arguments_of(json.loads(json.dumps(told["arguments"])))).summary
    assert (told["arrived"], told["gpu"]) == (2, "ours")
    assert {**again, "wall_time_s": 0.0} == {**told, "wall_time_s": 0.0}


def test_a_folder_that_cannot_be_simulated_again_says_what_is_gone(written: Path) -> None:
    summary_file, trace_file = written / "summary.json", written.parent / "trace.csv"
    told = json.loads(summary_file.read_text())
    for changed, sentence in (
        ({"mean_ttft_ms": 1.0}, "`mean_ttft_ms` comes out otherwise .* a file that it was made of has changed"),
        (
            {"mean_ttft_ms": 1.0, "servecast_version": "0.0.1"},
            "it was simulated by Servecast 0.0.1, and this is",
        ),
        ({"arguments": {**told["arguments"], "trace": "stdin"}}, "its requests came from standard input"),
    ):
        write_json(summary_file, told | changed)
        with pytest.raises(ConfigError, match=sentence):
            sim.explain(written)
    write_json(summary_file, told)
    trace_file.write_text(trace_file.read_text() + "0.3,400,8\n")
    with pytest.raises(ConfigError, match="holds other requests by now; bring back the trace"):
        sim.explain(written)
    trace_file.unlink()
    with pytest.raises(ConfigError, match=r"cannot be simulated again: .*trace.csv.* Or explain the run itself"):
        sim.explain(written)
    write_json(summary_file, {key: value for key, value in told.items() if key != "arguments"})
    with pytest.raises(ConfigError, match="has no `arguments`, being of a stream"):
        sim.explain(written)
    summary_file.write_text("{}")
    with pytest.raises(SimError, match="is no summary of a simulation"):
        sim.explain(written)


def test_what_a_program_made_is_told_by_its_type() -> None:
    told = run(trace(("A", 0.0, 8, 5)), timed(1.0)).summary["arguments"]
    assert told["trace"] == {"made_by_a_program": "Trace"}
    with pytest.raises(ConfigError, match="its step_time_model was a LinearStepTime that a program had made"):
        arguments_of({"step_time_model": told["step_time_model"]})


def test_several_answers_are_explained_together() -> None:
    """A step of all prompts, one more of the one that has three tokens; the other one's second comes in between."""
    requests = replace(trace(("A", 0.0, 8, 3), ("B", 0.0, 8, 1)), n=np.array([2, 1]))
    result = run(requests, timed(1.0), enable_prefix_caching=False)
    found = sim.explain(result, "A")
    assert [(event.at_ms, event.what) for event in found.events] == [
        (0.0, "arrived: 8 prompt tokens, 6 to be generated in 2 answers"),
        (0.0, "first scheduled"),
        (0.0, "step of 1,000.0 ms: 16 of its tokens behind 0, beside 8 tokens of 1 others"),
        (1000.0, "first token, TTFT 1,000.0 ms"),
        (3000.0, "5 more tokens, TPOT 400.00 ms, the longest gap 1,000.0 ms"),
        (3000.0, "finished with 6 tokens, E2EL 3,000.0 ms"),
    ]
    slowest = sim.explain(result, tries=False).slowest["e2el"]
    assert sum(slowest.parts_ms.values()) == pytest.approx(slowest.p99_ms, rel=0.01)


def test_an_answer_that_runs_beside_another_counts_for_its_share() -> None:
    """Of a span from 1 to 3 s half lies before 2 s."""
    found = [Span(0.0, 1.0, {"own_prefill": 1.0}), Span(1.0, 3.0, {"decode": 2.0})]
    assert total(found, 0.0, 2.0) == {"own_prefill": 1.0, "decode": 1.0}


def test_the_command_explains_a_run_or_a_folder(written: Path, servecast: Servecast) -> None:
    """The same of both, as text and as JSON; a request of either."""
    flags = (
        "--gpu",
        "h100-sxm",
        "--trace",
        written.parent / "trace.csv",
        "--users",
        "2",
        "--think-time",
        "exponential:0.1",
    )
    line = (
        "explain",
        "Llama-3.1-8B",
        *flags,
        "--max-num-seqs",
        "2",
        "--cudagraph-capture-sizes",
        "1",
        "2",
        "--seed",
        "3",
        "--slo",
        "ttft_p99=1s",
        "--no-intervals",
    )
    told = servecast("explain", written)
    assert told.status == 0
    assert "3 requests were served" in told.out
    assert told.out == servecast(*line).out
    found = json.loads(servecast("explain", written, "--no-tries", "--json").out)
    assert found["trials"] == []
    assert found["slowest"]["ttft"]["num_requests"] == 1
    life = servecast("explain", written, "r1").out
    assert life == servecast(*line, "--request", "r1").out
    assert json.loads(servecast("explain", written, "r1", "--json").out)["request_id"] == "r1"
    assert "the trace has no request 'r9'" in servecast("explain", written, "r9").err


def test_a_page_tells_what_p99_is_made_of_and_what_helps(
    crowded: sim.Result, written: Path, tmp_path: Path, servecast: Servecast
) -> None:
    """Behind what limits the run; the shares of each latency are one whole."""
    found = sim.explain(crowded)
    assert isinstance(found, Explanation)
    page = explained_page(crowded, found)
    names = [section.name for section in page.sections]
    assert names[names.index("limits") + 1] == "explained"
    blocks = page.sections[names.index("explained")].blocks
    bars = [block for block in blocks if isinstance(block, Bars)]
    assert [block.title.partition(":")[0] for block in bars] == ["TTFT", "TPOT", "E2EL"]
    assert [sum(one.share for one in block.shares) for block in bars] == pytest.approx([1.0, 1.0, 1.0])
    (helps,) = [block for block in blocks if isinstance(block, Grid)]
    assert [row[0] for row in helps.table.rows] == ["max_num_seqs=4", "replicas=2 (2 x the GPUs)", "max_num_seqs=2"]
    assert servecast("explain", written, "--no-tries", "--report", tmp_path / "page.html").status == 0
    assert "Why P99 is what it is" in (tmp_path / "page.html").read_text()
    refused = servecast("explain", written, "r1", "--report", tmp_path / "page.html")
    assert "--report writes the page of a whole run" in refused.err
