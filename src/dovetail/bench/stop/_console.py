"""The console of a run, as a client uses it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Console"]

_PRINTED = re.compile(r"console at (http://\S+/)\?token=(\S+)")


@dataclass(frozen=True, slots=True)
class Console:
    """Address and token."""

    address: str
    token: str

    @classmethod
    def printed_in(cls, text: str) -> Console | None:
        """The console whose address a run has printed."""
        found = _PRINTED.search(text)
        return cls(found[1], found[2]) if found else None

    @classmethod
    def start(cls, run: Path, *, environment: Mapping[str, str]) -> Console:
        """Start `dovetail console`. It ends with the other processes that have this environment."""
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "dovetail.cli", "console", str(run), "--no-open"],
            env=dict(environment),
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        for line in process.stdout:
            if (console := cls.printed_in(line)) is not None:
                return console
        raise RuntimeError(f"the console ended with {process.wait()}")

    def post(self, event: str) -> None:
        """Send an event such as `emergency`."""
        request = urllib.request.Request(
            f"{self.address}api/event",
            data=json.dumps({"event": event}).encode(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10.0):
            pass

    @property
    def port(self) -> int:
        return int(self.address.rsplit(":", 1)[1].strip("/"))
