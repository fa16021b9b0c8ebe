"""Readings of the semi-CRF at lengths at which its definition is too large to be traced: truth and budgets."""
