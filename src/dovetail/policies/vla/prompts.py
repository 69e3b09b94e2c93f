"""Prompts to tokens. The tokens of a text are computed once."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.core.errors import CheckpointError, UsageError, one_line
from dovetail.core.types import Array

__all__ = ["PromptTokenizer", "clean_task"]


def clean_task(task: str) -> str:
    """As openpi and pi0.5 do it."""
    return task.strip().replace("_", " ").replace("\n", " ")


class PromptTokenizer:
    """`path` is a tokenizer.json or a folder with one. `bos` is put before each text, and `origin` has the right file."""

    def __init__(self, path: Path, *, num_tokens: int, vocabulary: int, bos: str | None, origin: str) -> None:
        self._num_tokens = num_tokens
        file = path / "tokenizer.json" if path.is_dir() else path
        hint = f"It is in the model '{origin}'"
        if not file.is_file():
            raise UsageError(f"no tokenizer: {file} does not exist. {hint}: set policy.tokenizer")
        self._tokenizer = _read(file, hint)
        self._first = [] if bos is None else [self._tokenizer.token_to_id(bos)]
        if None in self._first or self._tokenizer.get_vocab_size() > vocabulary:
            wanted = f"at most {vocabulary} tokens" + ("" if bos is None else f" and {bos}")
            raise UsageError(f"{file} is not the tokenizer of this model: it needs {wanted}. {hint}")
        self.encode = lru_cache(maxsize=256)(self._encode)

    def _encode(self, text: str) -> tuple[Array, Array]:
        """Tokens, int64 [L], and their mask, padded right. A longer text is cut."""
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        found = [*self._first, *ids][: self._num_tokens]
        tokens, mask = np.zeros(self._num_tokens, np.int64), np.zeros(self._num_tokens, np.bool_)
        tokens[: len(found)], mask[: len(found)] = found, True
        return tokens, mask


def _read(file: Path, hint: str) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise UsageError("prompts need the package 'tokenizers': pip install 'dovetail[vlm]'") from error
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises nothing more specific
        raise CheckpointError(f"{file} is no tokenizer ({one_line(error)}). {hint}: copy it again") from error
