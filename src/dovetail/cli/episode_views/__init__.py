"""What `dovetail episodes` prints."""
