"""One file an algorithm, each reading like its paper."""
