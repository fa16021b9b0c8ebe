"""The nouns: definitions, kernels, cases, findings, verdicts. Nothing is run or judged here."""
