"""Cases: their space, how they are generated, ordered and shrunk, and which coverage goals they meet."""
