"""Who executes a run: `inline` in one process, `ray` as several actors at once, `onpolicy` for PPO."""
