"""Published checkpoints of pi0: recognized, checked completely before a weight is read, and never unpickled."""
