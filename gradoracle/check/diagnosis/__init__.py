"""What a fault looks like and what it may come from: where elements are wrong, and how, and what else is violated."""
