"""The driver of a Ray run: starts the roles, watches them, runs the phases, and publishes the status."""
