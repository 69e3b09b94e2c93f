"""Simulated tasks: scene, reset, success predicate, prompt and scripted expert."""
