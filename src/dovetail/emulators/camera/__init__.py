"""An emulated network camera that misbehaves on request."""
