"""Seeds: what the seed documents claim, measured for docs/background/seeds.md: their formulas, and correct ones."""
