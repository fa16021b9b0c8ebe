"""Scoreboard: peers' acceptance rules, judged on the same faults and the same right kernels as the laws."""
