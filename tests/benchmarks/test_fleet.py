"""What the replay of the routing ladder says of its stages."""

from benchmarks.fleet import Arm, Figures, Stage, table, verdict

ARM = Arm("none", "k8s", "random", "guide")


def test_saturated_stages_are_judged() -> None:
    """Two of three are measured to be saturated, 10 % and 20 % too fast; the simulation saturates a stage later."""
    stages = [
        Stage(3, Figures(1000, 0.5), Figures(3000, 0.1)),
        Stage(10, Figures(2000, 10), Figures(2200, 4)),
        Stage(20.5, Figures(2000, 20), Figures(2400, 18)),
    ]
    assert list(verdict(ARM, stages)) == [
        "saturates from 20.5 req/s (measured: from 10 req/s)",
        "output tok/s off by 15% (worst +20%), not within 12%",
        "mean TTFT off by 35% (worst -60%), not within 30%",
    ]
    assert list(table([(ARM, stages)]))[-1] == "| 20.5 | 2,000, 20.00 | 2,400, 18.00 |"


def test_where_nothing_saturates_all_stages_are_judged() -> None:
    stages = [Stage(3, Figures(1000, 0.2), Figures(1000, 0.2)), Stage(10, Figures(2000, 0.5), Figures(1880, 0.4))]
    assert list(verdict(ARM, stages)) == [
        "saturates nowhere (measured: nowhere)",
        "output tok/s off by 3% (worst -6%), within 12%",
        "mean TTFT off by 10% (worst -20%), within 30%",
    ]


def test_a_router_may_add_its_time() -> None:
    """Beside what is simulated."""
    stages = [Stage(3, Figures(1000, 0.2), Figures(1000, 0.17))]
    assert list(verdict(ARM._replace(router_s=0.02), stages))[-2:] == [
        "mean TTFT off by 15% (worst -15%), within 30%",
        "mean TTFT with the router's 20 ms off by 5% (worst -5%), within 30%",
    ]
