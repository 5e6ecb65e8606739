"""The engine."""

from sim.compiled import compiled_first

__path__ = compiled_first(__path__, "serving")
