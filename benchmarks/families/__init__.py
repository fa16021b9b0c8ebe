"""Families: the rows of ``gradoracle bench FAMILY``, one module each with ``rows(device, seconds)``."""
