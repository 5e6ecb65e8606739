"""The autotuning design: its formulas, the profile of a workload that they take, and the space that it searches."""
