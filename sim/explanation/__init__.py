"""A run explained: what limits it, where the time of its slowest requests went, and what would help."""
