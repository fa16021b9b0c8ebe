"""Mutation: small mistakes planted in a kernel's source, and which property catches each."""
