"""The Ray actors of a run: robots, store, labelers, learner, weights, ranks; and the handles to call them."""
