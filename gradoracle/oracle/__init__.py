"""The oracle: what is true of a family's definition on a sample, and how large an error rounding explains.

One definition, traced once per shape and derivative, is read in four number systems: three that give the truth (exact:
float64, balls, mpmath) and one that gives budgets (rounding). truth.py chooses among them. Nothing in here has seen a
kernel.
"""
