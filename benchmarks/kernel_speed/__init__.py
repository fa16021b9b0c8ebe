"""Kernel speed: what `python benchmarks/kernels.py` measures, the CSV that it writes, and the page made from that."""
