"""Routers: which replica of a fleet gets a request. A file a family, and a table of their names (`table.py`)."""
