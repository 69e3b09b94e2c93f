"""The roles of a run as plain classes. Each runtime calls them directly or wraps them in its own processes."""
