"""Requests with which nothing happens any more: vLLM would hold them for ever, and a run would lose them or not end."""

from sim.engine.driven import Core
from sim.errors import ConfigError


def check_holds_nobody(engine: Core, replica: int) -> None:
    """An engine has nothing to do before somebody comes. Raises ConfigError where it has requests."""
    num_waiting, num_running = engine.load
    if num_waiting or num_running:
        raise ConfigError(
            f"requests wait for ever: from {engine.now_s:.3f} s on replica {replica} can compute nothing for the {num_waiting} that wait"
            f" and the {num_running} that run, and nor could vLLM; give more KV blocks, or raise max_num_batched_tokens."
        )
