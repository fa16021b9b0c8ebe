"""The oracle: the true value of a family's definition on a sample, and the error that rounding explains.

One definition, traced once per shape and derivative, is read in four number systems. Three give the truth (float64,
balls, mpmath) and one gives budgets (rounding); truth.py chooses among them. No kernel is known here.
"""
