"""The typed schema, loading, plugins and recipes."""
