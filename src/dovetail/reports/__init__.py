"""What a run produces for people to look at: report.json, figures, videos, Rerun recordings."""
