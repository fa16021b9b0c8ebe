"""The oracle: what is true of a family's definition on a sample, and how large an error rounding explains.

One definition, traced once per shape and derivative (trace.py), is read in four number systems: float64.py,
certified.py (balls), multiprecision.py (mpmath) and rounding.py (budgets). truth.py chooses among them. Nothing in here
has seen a kernel.
"""
