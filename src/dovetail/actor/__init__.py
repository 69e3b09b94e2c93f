"""The control loop: observe, choose the action, filter, send, record. Imports neither torch nor Ray."""
