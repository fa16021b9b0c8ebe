"""Judges: definitions, laws and kernels of each shipped family, the universal laws, and the pytest entry."""
