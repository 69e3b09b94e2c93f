"""Drivers of real robots, one folder each. Only here are the libraries of vendors imported."""
