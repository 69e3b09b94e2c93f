"""Robots that speak ROS 2 topics, through DDS and without ROS."""
