"""Hardware in, executed action out: the safety filter, and drivers that load their library when built."""
