"""The policy server: answers robots that request actions over the network."""
