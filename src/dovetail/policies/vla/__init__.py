"""Vision-language-action models: networks, published checkpoints and preprocessing. Now: pi0, pi0.5 and SmolVLA."""
