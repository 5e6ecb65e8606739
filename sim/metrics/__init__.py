"""Figures computed from the records of a run: summary, limits, bottlenecks, cost."""
