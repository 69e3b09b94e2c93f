"""The policy server: computes actions for robots over the network."""
