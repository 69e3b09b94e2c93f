"""The durable log of what happened: write once, read many; and videos of it."""
