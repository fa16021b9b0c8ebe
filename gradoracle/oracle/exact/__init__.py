"""Exact readings: the traced graph in float64, in balls, in multiprecision; each with how far it is from the truth."""
