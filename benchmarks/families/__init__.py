"""Families: the rows of ``gradoracle bench FAMILY``, a module each with ``rows(device, seconds)``."""
