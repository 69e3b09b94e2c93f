"""Emulators of robots and cameras: they speak the protocol of the original on loopback, and misbehave as it does."""
