"""Published checkpoints: recognized, checked completely before a weight is read, and never unpickled."""
