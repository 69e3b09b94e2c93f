"""The measurements in docs/benchmarks.md. Each is a generator of rows; `dovetail bench` runs them."""
