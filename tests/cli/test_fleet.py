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
