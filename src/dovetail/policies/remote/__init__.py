"""The client of a policy server: the remote policy, its connection, handshake and wire format."""
