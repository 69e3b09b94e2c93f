"""The bench of STOP, and the systems that it and the STOP tests press."""
