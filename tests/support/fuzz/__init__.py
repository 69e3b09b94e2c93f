"""Damaged and hostile data for every stored and internal wire format, read under a memory limit."""
