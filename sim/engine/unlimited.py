"""A count that nothing reaches."""

from typing import Final

UNLIMITED: Final = (1 << 62) - 1
"""The largest number that compiled code holds without an object: it compares `sys.maxsize` thirty times as slowly."""
