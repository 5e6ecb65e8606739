"""Transfers as a fluid in exact fractions: what each gets is worked out anew at every instant at which anything changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(eq=False)
class Flow:
    """Bytes that are sent at a time through some ports, and what of them is left."""

    start_s: Fraction
    ports: Sequence[str]
    left: Fraction
    end_s: Fraction | None = None


def finish_times(flows: Sequence[Flow], capacity: Mapping[str, Fraction]) -> list[Fraction]:
    """When the last byte of each flow arrives."""
    now_s = min(flow.start_s for flow in flows)
    while any(flow.end_s is None for flow in flows):
        for flow in flows:
            if flow.end_s is None and flow.start_s <= now_s and flow.left == 0:
                flow.end_s = now_s
        running = [flow for flow in flows if flow.start_s <= now_s and flow.end_s is None]
        rates = shares(running, capacity)
        changes_s = [flow.start_s for flow in flows if flow.start_s > now_s]
        changes_s += [now_s + flow.left / rates[flow] for flow in running]
        if not changes_s:
            break
        then_s = min(changes_s)
        for flow in running:
            flow.left -= rates[flow] * (then_s - now_s)
        now_s = then_s
    return [flow.end_s for flow in flows if flow.end_s is not None]


def shares(running: Sequence[Flow], capacity: Mapping[str, Fraction]) -> dict[Flow, Fraction]:
    """Water that rises in all flows alike; a flow stops rising once a port on its way is full."""
    rates = dict.fromkeys(running, Fraction(0))
    rising = set(running)
    while rising:
        slack = {
            port: (capacity[port] - sum(rates[flow] for flow in running if port in flow.ports))
            / sum(port in flow.ports for flow in rising)
            for port in capacity
            if any(port in flow.ports for flow in rising)
        }
        step = min(slack.values())
        for flow in rising:
            rates[flow] += step
        full = {port for port, room in slack.items() if room == step}
        rising = {flow for flow in rising if full.isdisjoint(flow.ports)}
    return rates
