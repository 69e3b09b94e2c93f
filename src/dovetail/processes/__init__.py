"""Child processes, and the ways to exchange data with them: messages, arrays, wakeup pipes, shared memory."""
