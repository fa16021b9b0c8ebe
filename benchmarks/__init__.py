"""Benchmarks: what measures speed, false alarms and peers. Nothing that a check needs, and no part of the package."""
