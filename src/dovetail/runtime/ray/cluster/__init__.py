"""The Ray cluster: connect to one, start a local one, join and leave with a machine, tokens, cleanup."""
