"""Mutation: who checks the checker. Peers' acceptance rules, to be judged on the same faults as the laws."""

from __future__ import annotations

from gradoracle.mutation.peers import FUNCTION_RULES, RULES, Compared, Rule, Run

__all__ = ["FUNCTION_RULES", "RULES", "Compared", "Rule", "Run"]
