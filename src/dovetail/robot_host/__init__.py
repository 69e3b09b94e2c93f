"""The processes of one robot: control, inference and recorder, the supervisor that starts them, and the actors built on it."""
