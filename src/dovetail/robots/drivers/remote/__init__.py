"""`robot.type: remote`: an arm behind Dovetail's own robot protocol. The robot's computer runs `robot_side`."""
