"""Measured runs: replaying, validating and calibrating with them, and the intervals that follow for forecasts."""
