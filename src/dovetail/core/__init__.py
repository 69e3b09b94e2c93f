"""The nouns and the contracts. Imports nothing of ours and nothing but numpy."""
