"""Scoreboard: peers' acceptance rules, on the same wrong and correct kernels as gradoracle's properties."""
