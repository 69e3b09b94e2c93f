"""Vision-language-action models: pi0 with its published checkpoints, and models of the user."""
