"""The link between a run and the consoles that show it: state, camera images, and messages to the robot."""
