"""Fleets as files: what they say, and what is refused."""

from pathlib import Path

import pytest

from sim.errors import SimError
from sim.specs.fleet_file import read_fleet

POOLS = """
router: {policy: llm_d, queue: 3}
pools:
  - {replicas: 2}
  - {name: large, gpu: h200-sxm, engine: {tensor_parallel_size: 4}}
"""


def test_a_file_says_what_stands_in_it(tmp_path: Path) -> None:
    """As the same mapping does; what is not said has its default, and is not said in JSON either."""
    path = tmp_path / "fleet.yaml"
    path.write_text(POOLS)
    found = read_fleet(path)
    assert found.names == ["pool 0", "large"]
    assert [pool.replicas for pool in found.pools] == [2, 1]
    asked = {
        "router": {"policy": "llm_d", "queue": 3},
        "pools": [
            {"replicas": 2},
            {"name": "large", "gpu": "h200-sxm", "engine": {"tensor_parallel_size": 4}},
        ],
    }
    assert found.to_json() == asked
    assert read_fleet(asked) == found


@pytest.mark.parametrize(
    ("text", "sentence"),
    {
        "pools: []": "`pools` should have at least 1 item, got",
        "- 1": "the file should be a mapping of keys to values, got \\[1\\]",
        "pools: [3]": "`pools.0` should be a mapping of keys to values, got 3",
        "router: 5": "`router` must be a name or a mapping with `policy`, got 5",
        "autoscale: []": "`autoscale` must be a name or a mapping with `policy`, got",
        "pools: [{start_up: nvme}]": "`pools.0.start_up` must be seconds or a mapping, got 'nvme'",
        "start_up: nvme": "`start_up` must be seconds or a mapping, got 'nvme'",
        "transfer: {bandwidth_gb_s: 1e-6}": "`transfer.bandwidth_gb_s` should be greater than or equal to 0.001, got",
        "transfer: {handshake_s: 1000}": "`transfer.handshake_s` should be less than or equal to 600, got",
        "pools: [{replicas: 0}]": "`pools.0.replicas` should be greater than or equal to 1, got 0",
        "pools: [{replicas: 513}]": "`pools.0.replicas` should be less than or equal to 512, got 513",
        "pools: [{replica: 2}]": "`pools.0.replica` is not a known key. Did you mean replicas",
        "pools: [{engine: 3}]": "`pools.0.engine` should be a mapping of keys to values, got 3",
        "pools: [{name: a}, {name: a}]": "`pools` must have different names, got",
        "pools: [{name: pool 1}, {}]": "`pools` must have different names, got",
        "{pools: [{}], routr: llm_d}": "`routr` is not a known key. Did you mean router",
    }.items(),
)
def test_what_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    with pytest.raises(SimError, match=rf"fleet\.yaml: {sentence}"):
        read_fleet(path)


def test_a_mapping_is_called_fleet() -> None:
    with pytest.raises(SimError, match=r"^fleet: `pools` should have at least 1 item"):
        read_fleet({"pools": []})


def test_pools_that_are_not_said_are_one_replica() -> None:
    """As where a file says only how the fleet changes."""
    assert [pool.replicas for pool in read_fleet({}).pools] == [1]
