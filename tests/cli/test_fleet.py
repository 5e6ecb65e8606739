import json
from pathlib import Path

from tests.cli.conftest import Servecast


def test_a_fleet_shows_a_row_a_replica(trace: Path, servecast: Servecast) -> None:
    """The first and the last ones of a large fleet; all of them in JSON."""
    line = ("simulate", "Llama-3.1-8B", "--gpu", "h100-sxm", "--trace", trace, "--replicas", "20", "--router")
    table = servecast(*line, "random").out
    rows = table.partition("Replicas")[2].splitlines()[1:19]
    assert [row.split()[0] for row in rows] == ["replica", *map(str, range(8)), "...", *map(str, range(12, 20))]
    summary = json.loads(servecast(*line, "vllm_dp:api_servers=2", "--json").out)
    assert summary["fleet"] == {"replicas": 20, "router": "vllm_dp:api_servers=2"}
    assert sum(replica["requests"] for replica in summary["replicas"]) == summary["arrived"]


def test_unlike_pools_have_a_row_each(trace: Path, tmp_path: Path, servecast: Servecast) -> None:
    """What the file does not say is the command line's; the router is, where the file has none."""
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("pools: [{replicas: 2}, {name: large, gpu: h200-sxm, engine: {tensor_parallel_size: 2}}]")
    line = ("simulate", "Llama-3.1-8B", "--gpu", "h100-sxm", "--trace", trace, "--fleet", fleet, "--router", "random")
    table = servecast(*line, "--max-num-seqs", "32").out
    rows = table.partition("Pools")[2].splitlines()[1:4]
    assert [row[:6] for row in rows] == ["pool  ", "pool 0", "large "]
    summary = json.loads(servecast(*line, "--max-num-seqs", "32", "--json").out)
    assert [pool["engine"] for pool in summary["pools"]] == [
        {"max_num_seqs": 32},
        {"max_num_seqs": 32, "tensor_parallel_size": 2},
    ]
    assert servecast(*line, "--replicas", "2").err.endswith("got replicas 2 as well; leave it out.\n")


def test_routers_are_compared(servecast: Servecast) -> None:
    """A row each, and talk beside them."""
    call = ("compare", "Llama-3.1-8B", "--gpu", "h100-sxm", "--trace", "multi-turn", "--limit", "30", "--no-intervals")
    _, out, err = servecast(*call, "--replicas", "2", "--router", "random", "--router", "llm_d:queue=3")
    assert [line.split()[0] for line in out.splitlines()[-3:]] == ["router", "random", "llm_d:queue=3"]
    assert "each run by itself" in err


def test_choices_are_compared_behind_one_router(trace: Path, servecast: Servecast) -> None:
    """A fleet's, or those of a single replica, which needs no router."""
    call = (
        "compare",
        "Llama-3.1-8B",
        "--gpu",
        "h100-sxm",
        "--trace",
        trace,
        "--no-intervals",
        "--vary",
        "max_num_seqs=1,2",
    )
    of_fleet = json.loads(servecast(*call, "--replicas", "2", "--router", "random", "--json").out)["choices"]
    assert [run["choice"] for run in of_fleet] == ["as given", "max_num_seqs=1", "max_num_seqs=2"]
    assert {run["fleet"]["router"] for run in of_fleet} == {"random"}
    assert "\nchoice " in servecast(*call).out
    assert "are two comparisons" in servecast(*call, "--router", "random", "--router", "llm_d").err


def test_a_comparison_goes_to_a_folder(trace: Path, tmp_path: Path, servecast: Servecast) -> None:
    """As other results do: it is checked before anything runs, and named in the end."""
    line = ("compare", "Llama-3.1-8B", "--gpu", "h100-sxm", "--trace", trace, "--replicas", "2", "--no-intervals")
    routers = ("--router", "random", "--router", "llm_d", "--out")
    ended = servecast(*line, *routers, tmp_path / "found")
    assert ended.err.endswith(f"; results are in {tmp_path / 'found'}.\n")
    assert {path.name for path in (tmp_path / "found").iterdir()} == {
        "summary.json",
        "report.html",
        "routers.csv",
        "routers.png",
    }
    refused = servecast(*line, *routers, tmp_path)
    assert (refused.status, refused.out) == (2, "")
    assert "is not a comparison of Servecast" in refused.err
