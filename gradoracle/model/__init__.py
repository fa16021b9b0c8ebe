"""The nouns: what is said of definitions, kernels, cases, findings and verdicts. Nothing is run or judged here."""
