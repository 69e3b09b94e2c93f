"""ACT and Diffusion Policy, new or from LeRobot's folders. Parameters have LeRobot's names."""
