"""A bus of Feetech STS3215 servo motors, as in an SO-101, on a pseudo-terminal."""
