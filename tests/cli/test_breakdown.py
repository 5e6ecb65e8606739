"""`servecast simulate --breakdown`, as it is typed."""

from pathlib import Path

import sim
from sim.report.breakdown import breakdown_table
from tests.cli.conftest import Servecast


def test_it_is_shown_and_drawn(servecast: Servecast, tmp_path: Path) -> None:
    """As a table behind the result, in the JSON and as roofline.png; given step times have none."""
    chat = ("simulate", "Llama-3.1-8B", "--gpu", "h100-sxm", "--trace", "chat", "--limit", "50", "--no-intervals")
    status, out, _ = servecast(*chat, "--breakdown", "--out", tmp_path / "run")
    assert status == 0
    assert out.splitlines()[-1].split()[0] in {"host", "launches", "sampling", "elementwise"}
    assert (tmp_path / "run" / "roofline.png").stat().st_size > 10_000
    found = sim.simulate("Llama-3.1-8B", "h100-sxm", "chat", limit=50, intervals=False)
    assert breakdown_table(found.breakdown) in out
    linear = tmp_path / "linear.yaml"
    linear.write_text("{kind: linear, base_s: 0.01, per_token_s: 0, per_context_token_s: 0}")
    status, _, err = servecast(*chat, "--breakdown", "--step-time-model", linear)
    assert (status, "do not say where they go" in err) == (2, True)
