"""Benches of vision-language-action policies."""
