"""Results of a run for people: report.json, plots, videos, Rerun recordings."""
