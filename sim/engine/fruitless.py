"""Requests that preempt each other without a token: vLLM would let them for ever, and a simulation would not end."""

from sim.errors import ConfigError

MOST_FRUITLESS_PREEMPTIONS = 10_000


class FruitlessPreemptions:
    """`num_preemptions` have come since a token was last sampled."""

    def __init__(self) -> None:
        self.num_preemptions = 0

    def passed(self, num_preempted: int, num_sampled: int, load: tuple[int, int], now_s: float) -> None:
        """A pass was scheduled; `load` is (waiting requests, running requests). Raises ConfigError when there were too many."""
        if num_sampled:
            self.num_preemptions = 0
            return
        self.num_preemptions += num_preempted
        if self.num_preemptions > MOST_FRUITLESS_PREEMPTIONS:
            num_waiting, num_running = load
            raise ConfigError(
                f"requests preempt each other for ever: {MOST_FRUITLESS_PREEMPTIONS:,} preemptions without a token between"
                f" them, {num_running} running and {num_waiting} waiting at"
                f" {now_s:.3f} s; give more KV blocks, or admit with scheduler_reserve_full_isl."
            )
