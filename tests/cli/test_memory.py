"""`servecast memory` beyond its table: logs, pipeline stages, advice, the design's formula, offload."""

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Servecast

LOGS = Path(__file__).parents[1] / "data" / "startup_logs"
LLAMA = ("Llama-3.1-8B", "--gpu", "h100-sxm")


def test_a_log_is_set_beside_the_plan(servecast: Servecast) -> None:
    """Model, version and flags come from the log; on the H100 it was written on, the cache size is right to 0.1 %."""
    status, out, _ = servecast("memory", "--gpu", "h100-sxm", "--from-log", LOGS / "vllm-0.19.0.log")
    assert status == 0
    assert out.startswith("meta-llama/Llama-3.1-8B-Instruct on 1 x h100-sxm, vLLM 0.19.0")
    found = re.search(r"^KV cache tokens +476,016 +(\d+,\d+) +([+-]\d+\.\d) %$", out, re.MULTILINE)
    assert found, out
    assert abs(float(found[2])) <= 0.1


def test_a_version_that_is_not_known_is_named_once(servecast: Servecast, tmp_path: Path) -> None:
    """On the command line, and in a log; one that is no version at all is refused, also where no run would ask for it."""
    note = "vLLM 0.19.7 is not one of the versions known; it is taken as 0.19.1."
    log = tmp_path / "start.log"
    log.write_text((LOGS / "vllm-0.19.0.log").read_text(encoding="utf-8").replace("0.19.0", "0.19.7"), encoding="utf-8")
    for arguments in ((*LLAMA, "--vllm-version", "0.19.7"), ("--gpu", "h100-sxm", "--from-log", log)):
        assert servecast("memory", *arguments).err.count(note) == 1
    for command in ("memory", "validate"):
        status, _, err = servecast(command, *(LLAMA if command == "memory" else ("x.json",)), "--vllm-version", "new")
        assert (status, "must look like" in err) == (2, True)


def test_a_log_as_json_is_one_object(servecast: Servecast) -> None:
    """The plan's keys, and the log's lines with their errors."""
    _, out, _ = servecast("memory", "--gpu", "h100-sxm", "--from-log", LOGS / "vllm-0.19.0.log", "--json")
    result = json.loads(out)
    lines = {line["name"]: line for line in result["log"]["lines"]}
    assert result["feasible"]
    assert lines["weights"]["logged"] == 14.99
    assert abs(lines["weights"]["error_percent"]) < 0.1
    assert lines["CUDA graphs, estimate"]["predicted"] is None


def test_flags_win_over_the_log_and_paths_are_known_by_their_last_part(servecast: Servecast) -> None:
    """/model/Qwen2.5-7B-Instruct is the catalogue's; --gpu-memory-utilization is not in that log."""
    arguments = ("memory", "--gpu", "l40s", "--from-log", LOGS / "vllm-0.22.0.log", "--json")
    _, default, _ = servecast(*arguments)
    _, given, _ = servecast(*arguments, "--gpu-memory-utilization", "0.95")
    assert json.loads(given)["num_gpu_blocks"] > json.loads(default)["num_gpu_blocks"]


def test_what_a_log_holds_beyond_the_plan_is_said(servecast: Servecast) -> None:
    """KV transfer is named on stderr; expert parallelism and multi-token prediction are planned."""
    status, out, err = servecast("memory", "--gpu", "h200-sxm", "--from-log", LOGS / "vllm-0.28.0.log")
    assert status == 0
    assert "kv_transfer_config of the log is not part of the plan" in err
    assert re.search(r"^weights +81\.10 GiB +80\.88 GiB", out, re.MULTILINE)


def test_stages_are_planned(servecast: Servecast) -> None:
    """The memory of two stages is shown for the one that decides."""
    status, out, _ = servecast("memory", *LLAMA, "-pp", "2")
    assert status == 0
    assert "on 2 x h100-sxm" in out
    assert "per GPU, stage 2 of 2" in out


def test_what_does_not_fit_gets_advice_that_was_planned(servecast: Servecast) -> None:
    """Each line names an argument with which it fits, and doing so makes it fit."""
    _, out, _ = servecast("memory", "Llama-3.1-8B", "--gpu", "rtx-4090")
    advice = re.findall(r"^  (\w+)=(\S+): fits", out, re.MULTILINE)
    assert advice
    for argument, value in advice:
        flag = f"--{argument.replace('_', '-')}"
        _, better, _ = servecast("memory", "Llama-3.1-8B", "--gpu", "rtx-4090", flag, value, "--json")
        assert json.loads(better)["feasible"]


def test_nothing_helps_on_a_gpu_far_too_small(servecast: Servecast) -> None:
    """405 billion parameters on an L4 need another plan altogether."""
    _, out, _ = servecast("memory", "Llama-3.1-405B", "--gpu", "l4")
    assert out.endswith("No single argument makes it fit; take more or larger GPUs.\n")


def test_the_designs_formula_is_selectable(servecast: Servecast) -> None:
    """391 GiB of graphs for Llama-3.1-8B leave nothing on an H100."""
    _, out, _ = servecast("memory", *LLAMA, "--graph-memory-model", "design", "--json")
    plan = json.loads(out)
    assert not plan["feasible"]
    assert plan["cuda_graph_bytes"] / 2**30 == pytest.approx(391, abs=1)


def test_a_vision_tower_and_prediction_layers_are_switches(servecast: Servecast) -> None:
    """Both change the weights; a model without prediction layers says so."""
    qwen = ("memory", "Qwen/Qwen3.5-35B-A3B", "--gpu", "h100-sxm", "--json")
    plain, text, both = (
        json.loads(servecast(*qwen, *flags).out)["weights_bytes"]
        for flags in ((), ("--language-model-only",), ("--language-model-only", "--mtp"))
    )
    assert text < plain
    assert text < both
    status, _, err = servecast("memory", *LLAMA, "--mtp")
    assert status == 2
    assert "no layers for multi-token prediction" in err


def test_offload_plans_one_long_request(servecast: Servecast) -> None:
    """128k tokens of Qwen3-4B in 24 GB and 18 GiB of pinned memory; a ring of two needs 1 GiB less."""
    long = (
        "memory",
        "Qwen3-4B-Instruct-2507",
        "--gpu",
        "rtx-4090",
        "--max-model-len",
        "131072",
        "--offload",
        "layerwise",
    )
    status, out, _ = servecast(*long)
    assert status == 0
    assert "fits\nCPU: 18.00 GiB pinned" in out
    four, two = (json.loads(servecast(*long, "--num-kv-buffers", n, "--json").out) for n in ("4", "2"))
    assert four["gpu_bytes"] - two["gpu_bytes"] == 2**30
    assert four["feasible"]
    cut = ("--offload-block-size", "512", "--num-cpu-blocks", "256", "--savings", "rope_in_place", "--json")
    less = json.loads(servecast(*long, *cut).out)
    assert four["gpu_bytes"] - less["gpu_bytes"] == four["savings"]["rope_in_place"]["prefill_bytes"] + 72 * 2**20
    assert less["savings"].keys() == {"kv_joined", "lengths_kept", "mlp_chunk_tokens", "all"}
    for wrong, said in ((("-tp", "2"), "one GPU"), (("--savings", "rope_inplace"), "Did you mean rope_in_place")):
        status, _, err = servecast(*long, *wrong)
        assert (status, said in err) == (2, True), err


@pytest.mark.parametrize("flags", [("--explain",), ("--explain", "--offload", "layerwise", "--max-model-len", "32768")])
def test_explain_shows_formulas(servecast: Servecast, flags: tuple[str, ...]) -> None:
    """Numbers with their operators, for either plan."""
    _, out, _ = servecast("memory", "Qwen3-8B", "--gpu", "h100-sxm", *flags)
    assert re.search(r"\d x \d", out)


@pytest.mark.parametrize(
    "flags",
    [
        ("--num-kv-buffers", "2"),
        ("--num-cpu-blocks", "200"),
        ("--savings", "all"),
        ("--offload", "layerwise", "--mtp"),
        ("--offload", "layerwise", "--graph-memory-model", "design"),
        ("--offload", "layerwise", "--from-log", str(LOGS / "vllm-0.19.0.log")),
    ],
)
def test_options_that_would_change_nothing_are_refused(servecast: Servecast, flags: tuple[str, ...]) -> None:
    """Each says which option to leave out."""
    status, _, err = servecast("memory", *LLAMA, *flags)
    assert status == 2
    assert "changes nothing with" in err


@pytest.mark.parametrize("extra", [(), ("--json",), ("--offload", "layerwise")])
def test_a_required_fit_ends_with_3_after_the_plan(servecast: Servecast, extra: tuple[str, ...]) -> None:
    """Scripts read the status, people the plan: stdout is the same with and without the flag."""
    too_large = ("memory", "Llama-3.1-70B", "--gpu", "h100-sxm", *extra)
    _, plan, _ = servecast(*too_large)
    assert servecast(*too_large, "--require-fit") == (3, plan, "")
    assert len(plan.splitlines()) > 5


def test_a_required_fit_that_fits_ends_with_0(servecast: Servecast) -> None:
    """And without the flag, what does not fit ends with 0 as well."""
    assert servecast("memory", *LLAMA, "--require-fit")[0] == 0
    assert servecast("memory", "Llama-3.1-70B", "--gpu", "h100-sxm")[0] == 0
