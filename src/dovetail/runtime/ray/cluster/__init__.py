"""Ray itself: connect to a cluster, start a local one, join and leave machines, tokens, cleanup."""
