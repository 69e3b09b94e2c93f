"""Failing system calls and power cuts for the stores on disk: a preloaded C library, the stores, and their checks."""
