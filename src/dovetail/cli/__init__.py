"""The commands. Files without an underscore import nothing heavy, so that `--help` answers at once."""
