"""Families: the works of each shipped family that ``benchmarks/kernels.py`` times, in a module of its name."""
