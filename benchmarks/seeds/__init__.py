"""Seeds: what the seed documents claim, measured for docs/seeds.md: the formulas of each seed, and the right ones."""
