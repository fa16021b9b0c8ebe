"""Mutation: who checks the checker. Small faults planted in a kernel's source, and which law catches each."""
