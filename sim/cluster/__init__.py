"""Who talks to whom, when: the simulation on SimPy's clock."""
