"""A server watched from both sides: what its front end takes is what is predicted."""

from benchmarks.front_end import rows
from tests.shared import SHARED, needs_shared


@needs_shared
def test_what_a_client_sees_beyond_the_engine_is_predicted() -> None:
    """Within 2.5 ms where the engine leaves the cores to the front end (server D), within 7 ms where it does not."""
    found = list(rows(SHARED / "measured"))
    assert len(found) == 14
    for server, load, *_, measured_ms, predicted_ms in found:
        assert abs(float(str(measured_ms)) - float(str(predicted_ms))) < (2.5 if server == "D" else 7.0), load
