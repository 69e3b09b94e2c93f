"""On-policy learning (PPO): simulated worlds, rollout collection, and the training loop."""
