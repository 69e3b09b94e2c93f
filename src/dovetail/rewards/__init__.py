"""Jobs on rewards: relabel episodes, train and retrain success classifiers, end episodes on detected success."""
