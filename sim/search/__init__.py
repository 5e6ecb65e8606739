"""The optimizer. `objective` is the function it optimises, for anyone's own."""

from sim.search.scoring import Objective, objective

__all__ = ["Objective", "objective"]
