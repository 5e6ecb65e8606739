"""The waiting queues of the naive engine."""

from tests.reference.content import BlockKeys
from tests.reference.queues import FcfsQueue, PriorityQueue, WaitingQueue
from tests.reference.request import Request


def make_request(request_id: str, *, arrival_s: float = 0.0, priority: int = 0) -> Request:
    return Request(0, request_id, arrival_s, 1, 1, BlockKeys((), 4, {}), priority)


def served(queue: WaitingQueue) -> str:
    return "".join(queue.pop().request_id for _ in range(len(queue)))


def test_who_is_put_back_goes_to_the_front_under_fcfs() -> None:
    """B, then C are put back: C is served first."""
    queue = FcfsQueue()
    for name in "ABC":
        queue.add(make_request(name))
    a, b, c = (queue.pop() for _ in "ABC")
    queue.add(a)
    queue.put_back(b)
    queue.put_back(c)
    assert [request.request_id for request in queue.in_order()] == ["C", "B", "A"]
    assert served(queue) == "CBA"


def test_priority_goes_before_arrival_and_arrival_before_the_id() -> None:
    """Wherever it is put in, the smallest (priority, arrival, id) is served first."""
    queue = PriorityQueue()
    queue.add(make_request("D", arrival_s=1, priority=1))
    queue.add(make_request("C", arrival_s=1))
    queue.put_back(make_request("E", arrival_s=0, priority=2))
    queue.add(make_request("B", arrival_s=1))
    queue.put_back(make_request("A", arrival_s=0))
    assert queue.peek().request_id == "A"
    assert served(queue) == "ABCDE"


def test_a_request_can_leave_a_queue_from_its_middle() -> None:
    """Who finishes while waiting is taken out."""
    for queue in (FcfsQueue(), PriorityQueue()):
        requests = [make_request(name) for name in "ABC"]
        for request in requests:
            queue.add(request)
        queue.remove([requests[1]])
        assert served(queue) == "AC"
