"""Shared types, specs, contracts and small tools. Imports numpy and no other dovetail folder."""
