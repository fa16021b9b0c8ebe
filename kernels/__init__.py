"""Subjects: Triton kernels as plain callables, importing torch and triton only."""
