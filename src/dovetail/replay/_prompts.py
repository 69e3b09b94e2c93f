"""Prompts in the replay. The record of an episode holds up to 256 bytes; a longer prompt is a file, and the record its hash.

A prompt that begins later in the episode is a file, too. The rows from there on hold its number: the start of its hash.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from dovetail.core.disk import make_folder, read_file, write_atomic
from dovetail.core.errors import StoreError
from dovetail.core.prompts import MAX_PROMPT_BYTES, PROMPT_BYTES, encode_prompt
from dovetail.core.types import Array

__all__ = ["EPISODES_PROMPT", "PromptFiles"]

_FOLDER = "prompts"
_MARK = 0xFF  # no UTF-8 text contains this byte
_DIGEST_BYTES = 32  # hexadecimal digits
_NUMBER_DIGITS = 16  # of a number, int64
EPISODES_PROMPT = 0  # in place of a number


class PromptFiles:
    """`store` returns what a record holds and `number` what rows hold; `read` turns them into the texts again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / _FOLDER
        self._texts: dict[str, bytes] = {}

    def store(self, prompt: str) -> bytes:
        text = encode_prompt(prompt).tobytes().rstrip(b"\0")
        if len(text) <= PROMPT_BYTES:
            return text
        return bytes([_MARK]) + self._write(text, _DIGEST_BYTES).encode()

    def number(self, prompt: str) -> int:
        digits = self._write(encode_prompt(prompt).tobytes().rstrip(b"\0"), _NUMBER_DIGITS)
        return int.from_bytes(bytes.fromhex(digits), "big", signed=True)

    def read(self, records: Array, numbers: Array, into: Array) -> None:
        """Fill `into`, uint8 [B, L], with the prompts of records, uint8 [B, 256], or of numbers [B] where they are set."""
        into[:] = 0
        into[:, :PROMPT_BYTES] = records
        changed = numbers != EPISODES_PROMPT
        long = np.flatnonzero((records[:, 0] == _MARK) & ~changed)
        if len(long):
            keys, where = np.unique(records[long, 1 : 1 + _DIGEST_BYTES], axis=0, return_inverse=True)
            for index, key in enumerate(keys):
                self._fill(into, long[where.reshape(-1) == index], key.tobytes().decode(errors="replace"))
        for number in np.unique(numbers[changed]):
            name = int(number).to_bytes(_NUMBER_DIGITS // 2, "big", signed=True).hex()
            self._fill(into, np.flatnonzero(numbers == number), name)

    def _fill(self, into: Array, rows: Array, name: str) -> None:
        text = np.frombuffer(self._text(name), np.uint8)
        into[rows] = 0
        into[rows[:, None], np.arange(len(text))] = text

    def _write(self, text: bytes, num_digits: int) -> str:
        """Write the text into a file, if there is none yet. Returns its name, the start of its hash."""
        name = hashlib.sha256(text).hexdigest()[:num_digits]
        path = self._folder / name
        if not path.is_file():  # also after the replay was erased
            make_folder(self._folder)
            write_atomic(path, text)
        return name

    def _text(self, name: str) -> bytes:
        if name not in self._texts:
            text = read_file(self._folder / Path(name).name, max_bytes=MAX_PROMPT_BYTES)
            if hashlib.sha256(text).hexdigest()[: len(name)] != name:
                raise StoreError(f"{self._folder / name} is damaged. Delete the replay folder: it is made again")
            self._texts[name] = text
        return self._texts[name]
