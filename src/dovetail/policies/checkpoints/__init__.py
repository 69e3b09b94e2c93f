"""Reading of published checkpoints, shared by policies: weight files, normalization, and how axes and cameras correspond."""
