"""`python -m dovetail_robot MODULE:CLASS`."""

from __future__ import annotations

import sys

from .command import main

sys.exit(main())
