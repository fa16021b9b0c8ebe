"""Cases: their space, how they are drawn, ordered and shrunk, and which coverage goals they meet."""
