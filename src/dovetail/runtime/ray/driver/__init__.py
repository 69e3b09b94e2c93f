"""The driver of a Ray run: starts and monitors the roles, runs the phases, and publishes the status."""
