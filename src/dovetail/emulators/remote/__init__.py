"""An emulated arm behind the robot protocol, which misbehaves on request."""
