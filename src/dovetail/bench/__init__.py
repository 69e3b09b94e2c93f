"""Measurements that users run on their own machine with `dovetail bench`. Comparisons with other libraries and long
proofs are in the top-level package `benchmarks`."""
