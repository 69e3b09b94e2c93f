"""The HTTP server of SERL and HIL-SERL with an emulated Franka arm behind it."""
