"""`python -m dovetail.cli`: the same as `dovetail`, for where no script is installed."""

from __future__ import annotations

from dovetail.cli.entry import entry

if __name__ == "__main__":
    entry()
