"""Prompts of episodes in the replay. A record holds up to 256 bytes; a longer prompt is a file, and the record its hash."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from dovetail.core.disk import make_folder, read_file, write_atomic
from dovetail.core.errors import StoreError
from dovetail.core.prompts import MAX_PROMPT_BYTES, PROMPT_BYTES, encode_prompt
from dovetail.core.types import Array

__all__ = ["PromptFiles"]

_FOLDER = "prompts"
_MARK = 0xFF  # no UTF-8 text contains this byte
_DIGEST_BYTES = 32  # hexadecimal digits


class PromptFiles:
    """`store` returns what a record holds; `read` turns it into the text again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / _FOLDER
        self._texts: dict[bytes, bytes] = {}

    def store(self, prompt: str) -> bytes:
        text = encode_prompt(prompt).tobytes().rstrip(b"\0")
        if len(text) <= PROMPT_BYTES:
            return text
        digest = hashlib.sha256(text).hexdigest()[:_DIGEST_BYTES]
        path = self._folder / digest
        if not path.is_file():  # also after the replay was erased
            make_folder(self._folder)
            write_atomic(path, text)
        return bytes([_MARK]) + digest.encode()

    def read(self, records: Array, into: Array) -> None:
        """Fill `into`, uint8 [B, L], with the prompts of records, uint8 [B, 256]."""
        into[:] = 0
        into[:, :PROMPT_BYTES] = records
        long = np.flatnonzero(records[:, 0] == _MARK)
        if not len(long):
            return
        keys, where = np.unique(records[long, : 1 + _DIGEST_BYTES], axis=0, return_inverse=True)
        for number, key in enumerate(keys):
            text = np.frombuffer(self._text(key.tobytes()), np.uint8)
            rows = long[where.reshape(-1) == number]
            into[rows] = 0
            into[rows[:, None], np.arange(len(text))] = text

    def _text(self, key: bytes) -> bytes:
        if key not in self._texts:
            digest = key[1:].decode(errors="replace")
            text = read_file(self._folder / Path(digest).name, max_bytes=MAX_PROMPT_BYTES)
            if hashlib.sha256(text).hexdigest()[:_DIGEST_BYTES] != digest:
                raise StoreError(f"{self._folder / digest} is damaged. Delete the replay folder: it is made again")
            self._texts[key] = text
        return self._texts[key]
