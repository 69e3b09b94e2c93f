"""Vision-language-action models: pi0, pi0.5 and SmolVLA with their published checkpoints, and models of the user."""
