"""The settings of a run: schema, recipes, loading and saving, and the lookup of plugins."""
