"""Hosts of kernels: they run what is judged, and know no truth."""
