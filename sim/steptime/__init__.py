"""How long its steps take."""

from sim.compiled import compiled_first

__path__ = compiled_first(__path__, "steptime")
