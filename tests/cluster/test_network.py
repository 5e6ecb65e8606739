"""What a pull takes: a handshake the first time, a latency, descriptors, and its share of both replicas' cards."""

import pytest
import simpy

from sim.cluster.arrivals import Process
from sim.cluster.network import Network, NetworkCosts
from sim.memory.transfers import Load


def ends(pulls: list[tuple[float, int, int, Load]], costs: NetworkCosts, gpus: tuple[int, ...]) -> list[float]:
    """When each of `(at, sender, receiver, load)` is over."""
    env = simpy.Environment()
    network = Network(env, costs)
    for num_gpus in gpus:
        network.add(num_gpus)
    over = [0.0] * len(pulls)

    def one(number: int) -> Process:
        at_s, sender, receiver, load = pulls[number]
        yield env.timeout(at_s)
        yield from network.pull(sender, receiver, load)
        over[number] = env.now

    for number in range(len(pulls)):
        env.process(one(number))
    env.run()
    return over


def test_a_pull_alone_takes_its_latency_its_descriptors_and_its_bytes() -> None:
    """1 s, 3 x 0.5 s, and 20 bytes at the sender's 10 a second though the receiver has four cards."""
    costs = NetworkCosts(bytes_per_s=10.0, latency_s=1.0, descriptor_s=0.5)
    assert ends([(0.0, 0, 1, Load(20, 3))], costs, (1, 4)) == [4.5]


def test_pulls_from_one_sender_share_its_cards() -> None:
    """Two receivers, each at half the sender's 10 bytes a second."""
    costs = NetworkCosts(bytes_per_s=10.0, latency_s=0.0, descriptor_s=0.0)
    assert ends([(0.0, 0, 1, Load(20, 1)), (0.0, 0, 2, Load(20, 1))], costs, (1, 1, 1)) == [4.0, 4.0]


def test_a_pair_shakes_hands_once() -> None:
    """Whoever comes while the hands are shaken waits for the rest of it; later ones and those of met pairs do not."""
    costs = NetworkCosts(bytes_per_s=10.0, latency_s=0.0, descriptor_s=0.0, handshake_s=6.0)
    pulls = [(at_s, 0, 1, Load(0, 0)) for at_s in (0.0, 5.0, 9.0)]
    assert ends([*pulls, (9.0, 1, 0, Load(0, 0))], costs, (1, 1)) == pytest.approx([6.0, 6.0, 9.0, 15.0])
