"""The web page: watch, take over, label."""
