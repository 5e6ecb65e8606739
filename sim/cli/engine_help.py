"""The engine flags as --help shows them."""

from rich.box import ROUNDED
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from sim.errors import listed
from sim.specs.engine import ARGUMENTS
from sim.specs.presets import PRESETS
from sim.specs.releases import NEWEST
from sim.specs.serve_flags import ENGINE_FLAGS

_MORE_FLAGS = {
    "-cc.cudagraph_mode": ARGUMENTS["cudagraph_mode"].help,
    "--kv-transfer-config": "KV in host memory by its OffloadingConnector, with its eviction_policy",
    "--speculative-config": ARGUMENTS["speculative_config"].help,
    "-O0 ... -O3": "optimisation level: 0 captures no CUDA graphs, 1 piecewise ones",
    "--preset": f"arguments by use case, {listed(list(PRESETS), 'or')}; any that are given as well win",
    "--config": "a YAML file of flags, as for vllm serve",
    "--vllm-version": f"defaults and rules of that version, {NEWEST} when absent",
    "-- vllm serve ...": "a pasted command line, as it is",
}


def print_engine_flags() -> None:
    """All engine flags with a line each."""
    table = Table(show_header=False, box=None, padding=(0, 1))
    for flag in ENGINE_FLAGS.values():
        table.add_row(
            f"--\\[no-]{flag.name}" if flag.argument.kind == "switch" else f"--{flag.name}", flag.argument.help
        )
    for flag_text, help_text in _MORE_FLAGS.items():
        table.add_row(flag_text, help_text)
    title = "Engine flags, as for vllm serve"
    Console().print(Panel(table, title=title, title_align="left", border_style="dim", box=ROUNDED))
