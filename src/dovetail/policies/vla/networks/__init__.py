"""Networks of the families, in plain torch: they train and act with the same code."""
