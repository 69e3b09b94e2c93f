"""A miniature of LeRobot with the class shapes of 0.4.4 and 0.6. Its arms live in a folder: `port`."""
