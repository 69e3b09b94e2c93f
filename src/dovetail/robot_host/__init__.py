"""The processes of one robot (control, inference, recorder), their supervisor, and actors that use it."""
