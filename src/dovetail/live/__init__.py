"""The link between a running run and the processes that watch it: state, camera images, and messages from people."""
