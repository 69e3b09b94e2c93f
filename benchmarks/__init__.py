"""Comparisons with other libraries and long proofs, beside the package and outside the wheel.

`python -m benchmarks` lists them; run it in the root of the repository. `dovetail bench` has the measurements of one
machine.
"""
