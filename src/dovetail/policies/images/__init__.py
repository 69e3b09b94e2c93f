"""Image encoders: small networks that are trained, and pretrained backbones that stay frozen."""
