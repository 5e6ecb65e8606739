"""Factors between spec-sheet units and the SI units used inside."""

KIB = 1024
MIB = 1024**2
GIB = 1024**3
KILO = 1e3
MEGA = 1e6
GIGA = 1e9
TERA = 1e12
US = 1e-6
MS = 1e-3
NS = 1e-9
