"""The process that owns a LeRobot device. It runs under LeRobot's interpreter: no import of other dovetail modules here.

Only the standard library, numpy and lerobot may be imported, and the code must run on Python 3.10.
"""
