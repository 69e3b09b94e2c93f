"""`python -m dovetail.cli`: the same as `dovetail`, for where no script is installed."""

from __future__ import annotations

import sys

from dovetail.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
