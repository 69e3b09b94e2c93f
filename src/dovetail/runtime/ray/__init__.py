"""Everything at once: each role a Ray actor, on one machine or on many."""
