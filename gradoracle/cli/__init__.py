"""Arguments in, exit code out: the command line, its completion, and the entry for pytest."""
