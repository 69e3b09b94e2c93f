"""Vision-language-action models: networks, published checkpoints and preprocessing. Now: pi0 and SmolVLA."""
