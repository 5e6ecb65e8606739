"""Async scheduling: the next step is scheduled when the running one starts."""

from sim.engine.config import KVGroup
from tests.engines import Engine
from tests.makers import Ask, run


def test_a_step_is_scheduled_while_the_one_before_runs(engine: Engine) -> None:
    """Statement 30: A4 with three outputs takes exactly three launches; the second is made at once, before any token."""
    done = run(engine, [Ask("A", 4, 3)], async_scheduling=True)
    assert done.tokens == [{"A": 4}, {"A": 1}, {"A": 1}]
    assert done.column("t") == [0, 0, 1]
    assert done.column("start") == [0, 1, 2]
    assert (done.of("A", "first_token_s"), done.of("A", "finish_s")) == (1, 3)


def test_chunks_that_yield_no_token_are_launched_ahead_too(engine: Engine) -> None:
    """Statement 32: A10 under budget 4 launches 4, 4, 2, 1 and no more."""
    done = run(engine, [Ask("A", 10, 2)], max_num_batched_tokens=4, async_scheduling=True)
    assert done.tokens == [{"A": 4}, {"A": 4}, {"A": 2}, {"A": 1}]
    assert done.column("sampled") == [[], [], ["A"], ["A"]]


def test_an_arrival_joins_the_next_launch(engine: Engine) -> None:
    """Statement 33: B arrives in A's second step, joins the launch made at its end and runs after the one in flight."""
    done = run(engine, [Ask("A", 4, 4), Ask("B", 6, 2, at=0.5)], async_scheduling=True)
    assert done.tokens == [{"A": 4}, {"A": 1}, {"A": 1, "B": 6}, {"A": 1, "B": 1}]
    assert (done.of("B", "first_scheduled_s"), done.of("B", "first_token_s")) == (1, 3)


def test_a_seat_and_its_blocks_are_free_a_step_later_than_in_sync(engine: Engine) -> None:
    """One seat: B is launched when A's last token has come back, at 2, and not when that token's step was launched."""
    done = run(engine, [Ask("A", 4, 2), Ask("B", 4, 1)], max_num_seqs=1, async_scheduling=True)
    assert done.tokens == [{"A": 4}, {"A": 1}, {"B": 4}]
    assert done.column("t") == [0, 0, 2]


def test_a_preempted_request_still_gets_its_token_in_flight(engine: Engine) -> None:
    """B is put back while its first token is computed; it comes at 1, and counts among the 8 + 1 that B resumes with."""
    done = run(engine, [Ask("A", 8, 4), Ask("B", 8, 4)], num_gpu_blocks=6, async_scheduling=True)
    assert done.column("preempted")[1] == ["B"]
    assert done.of("B", "first_token_s") == 1
    assert done.column("sched")[4] == [["B", 1, 8, 1]]
    assert done.of("B", "finish_s") == 7


def test_a_request_can_finish_from_the_queue(engine: Engine) -> None:
    """B is put back while its only token is computed: it comes at 1 and ends B, who leaves the queue."""
    done = run(engine, [Ask("A", 8, 4), Ask("B", 8, 1)], num_gpu_blocks=5, async_scheduling=True)
    assert done.column("waiting") == [[], ["B"], [], []]
    assert (done.of("B", "num_preemptions"), done.of("B", "generated_tokens"), done.of("B", "finish_s")) == (1, 1, 1)


def test_a_window_passes_only_what_has_been_computed(engine: Engine) -> None:
    """Window 4: the second launch still holds all 12 tokens of the first, which runs; the third gives 2 blocks back."""
    done = run(
        engine,
        [Ask("A", 12, 6)],
        num_gpu_blocks=50,
        enable_prefix_caching=False,
        kv_groups=(KVGroup(window=4),),
        async_scheduling=True,
    )
    assert done.column("free") == [46, 45, 47, 47, 47, 47]
