"""Scoreboard: peers' acceptance rules, judged on the same faults and the same correct kernels as the laws."""
