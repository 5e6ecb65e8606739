"""SGLang's tree of what workers were sent."""

from tests.cluster.routers.makers import Requests, Shown, prompts


def test_a_tree_is_cut_at_the_ends_that_were_used_longest_ago() -> None:
    """80 characters are 20 tokens: the head stays with the tail that was sent last."""
    head = (1, 10)
    trace = prompts((head, (2, 10)), (head, (3, 10)), (head, (2, 10)), (head, (3, 10)))
    asked = Requests(
        "sglang_cache_aware:max_tree_size=80,eviction_interval_s=2,cache_threshold=0.6", trace, [Shown(), Shown()]
    )
    assert [asked.choose(0), asked.choose(1)] == [0, 1]  # half of the second is known, which is not enough
    assert [asked.choose(2), asked.choose(3)] == [0, 1]


def test_an_imbalance_sends_to_the_shortest_queue() -> None:
    same = prompts(*[((1, 100),)] * 6)
    assert Requests("sglang_cache_aware:balance_abs_threshold=2", same, [Shown(), Shown()]).all() == [0, 0, 0, 1, 0, 1]


def test_a_worker_that_left_is_forgotten_and_never_the_smallest() -> None:
    """The second is gone before anything comes; then it takes the prompt that nobody has."""
    trace = prompts(((1, 50),), ((2, 50),), ((3, 50),), ((1, 50),))
    asked = Requests("sglang_cache_aware", trace, [Shown(), Shown()])
    asked.router.left(1)
    assert [asked.choose(0), asked.choose(1)] == [0, 0]
    asked.router.joined(1)
    asked.router.left(0)
    asked.router.joined(0)
    assert asked.choose(2) == 0, "both are as small, and the first is the first"
    assert asked.choose(3) == 1, "what the first was sent before it left is forgotten"
