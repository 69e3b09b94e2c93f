"""`dovetail serve` as a process of its own, for as long as a block lasts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dovetail.core.errors import DovetailError

__all__ = ["served"]

_END_S = 10.0


@contextmanager
def served(target: str | Path, *, address: str, token_file: Path, runs_dir: Path) -> Iterator[None]:
    """Serve weights over openpi's protocol at this address. The server is ready inside the block, and ends with it."""
    host, _, port = address.rpartition(":")
    command = [sys.executable, "-P", "-m", "dovetail.cli", "serve", str(target), "--protocol", "openpi", "--quiet"]
    command += ["--host", host.strip("[]"), "--port", port, "--token-file", str(token_file)]
    command += ["--runs-dir", str(runs_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            if "ready on" not in process.stdout.readline():
                process.kill()
                said = " ".join(process.stderr.read().split()[-60:]) or "it ended without a message"
                raise DovetailError(f"the server of {target} did not start: {said}")
            yield
        finally:
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
