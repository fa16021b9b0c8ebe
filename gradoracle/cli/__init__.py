"""The command line, its completion, and the entry for pytest."""
