"""Definitions, properties and kernels of each shipped family, universal properties, and the pytest entry."""
