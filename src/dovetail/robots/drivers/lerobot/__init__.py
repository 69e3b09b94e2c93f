"""LeRobot robots, teleoperators and cameras, in a process with the interpreter of a LeRobot environment."""
