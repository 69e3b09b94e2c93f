"""Operators that may take over: none, scripted, browser, keyboard, gamepad, SpaceMouse, pedal."""
