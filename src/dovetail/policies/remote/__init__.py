"""The client side of a policy server: the remote policy, its connection, handshake, requests and wire format. No torch."""
