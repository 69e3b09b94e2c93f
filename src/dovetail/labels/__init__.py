"""Episode in, rewards out; stored beside the episode, never in it."""
