"""Child processes and the ways to talk to them: start and watch a child, messages, arrays, wake-ups, shared memory."""
