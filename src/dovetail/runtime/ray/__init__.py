"""Everything at once: each role an actor of Ray's, none waiting for another. The only rooms that know Ray are here."""
