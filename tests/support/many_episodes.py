"""Many small episodes, made in seconds: each has a manifest of its own and shares the other files by hard links."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from dovetail.core.disk import load_json, sha256
from dovetail.episodes import _order
from dovetail.episodes._manifest import MANIFEST, pack_manifest

__all__ = ["many_episodes"]

_MAX_LINKS = 20_000  # of one file; ext4 allows 65,000


def many_episodes(episodes: Path, template: Path, number: int) -> None:
    """Fill a new folder of episodes with e000000, e000001, ..., copies of the episode `template`.

    The log cannot tell them from episodes that were recorded, unless it verifies the copy of the manifest in the steps.
    """
    shutil.rmtree(episodes, ignore_errors=True)
    episodes.mkdir()
    text = (template / MANIFEST).read_text()
    manifest = load_json(text.encode(), name=template.name, indent=1)
    shared = {path.name: os.fspath(path) for path in template.iterdir() if path.name != MANIFEST}
    for index in range(number):
        folder = os.fspath(episodes / f"e{index:06d}")
        os.mkdir(folder)
        with open(f"{folder}/{MANIFEST}", "wb") as file:
            file.write(_renamed(manifest, text, index))
        for name, original in shared.items():
            if index % _MAX_LINKS:
                os.link(original, f"{folder}/{name}")
            else:
                shared[name] = shutil.copyfile(original, f"{folder}/{name}")
    lines = (_order.line(index + 1, f"e{index:06d}") for index in range(number))
    (episodes / _order.ORDER).write_bytes(b"".join(lines))
    last = f"e{number - 1:06d}"
    expected = pack_manifest({**manifest, "id": last, "number": number})
    assert (episodes / last / MANIFEST).read_bytes() == expected


def _renamed(manifest: dict[str, Any], text: str, index: int) -> bytes:
    """What `pack_manifest` returns for another id and number, but faster: indented JSON is made in Python."""
    body = {**manifest, "id": f"e{index:06d}", "number": index + 1}
    checksum = sha256(json.dumps(body).encode())
    text = text.replace(f'"id": "{manifest["id"]}"', f'"id": "{body["id"]}"', 1)
    text = text.replace(f'"number": {manifest["number"]},', f'"number": {index + 1},', 1)
    head, _, _ = text.rpartition('"checksum": "')
    return f'{head}"checksum": "{checksum}"\n}}'.encode()
