"""A job: its scene in simulation, how to reset it, when it is done, its words, its scripted expert."""
