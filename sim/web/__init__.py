"""The live what-if page: a form whose every change is simulated."""
