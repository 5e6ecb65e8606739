"""One verdict a commit: Hypothesis draws the same examples each time and does not judge how busy the machine is."""

from hypothesis import settings

settings.register_profile("gate", derandomize=True, deadline=None)
settings.load_profile("gate")
