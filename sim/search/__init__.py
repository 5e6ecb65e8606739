"""Searches: optimize and capacity. `objective` gives the function that `optimize` optimises, for an optimizer of your own."""

from sim.search.scoring import Objective, objective

__all__ = ["Objective", "objective"]
