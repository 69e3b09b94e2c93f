"""Run every role at once as a Ray actor. Only this folder imports Ray."""
