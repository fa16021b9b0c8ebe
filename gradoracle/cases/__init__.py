"""Which inputs: the space of cases, how they are drawn, ordered and shrunk, and which situations they cover."""
