"""The version, for whatever stamps results with it."""

__version__ = "0.1.0"
