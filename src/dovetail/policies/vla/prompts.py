"""Prompts to tokens. The tokens of a text are computed once."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.core.errors import CheckpointError, UsageError, one_line, shown
from dovetail.core.types import Array
from dovetail.policies.checkpoints.folder_files import check_size, find_file, read_json

__all__ = ["PromptTokenizer", "clean_task"]

_MAX_TOKENIZER_BYTES = 64 << 20  # PaliGemma's has 18 MB


def clean_task(task: str) -> str:
    """As openpi and pi0.5 do it."""
    return task.strip().replace("_", " ").replace("\n", " ")


class PromptTokenizer:
    """`path` is a tokenizer.json or a folder with one. `bos` is put before each text, and `origin` has the right file.

    Without `bos`, special tokens are those that the file itself adds. A longer text is cut, or refused if `may_cut` is
    false."""

    def __init__(
        self, path: Path, *, num_tokens: int, vocabulary: int, bos: str | None, origin: str, may_cut: bool = True
    ) -> None:
        self._num_tokens, self._may_cut = num_tokens, may_cut
        file = path / "tokenizer.json" if path.is_dir() else path
        hint = f"It is in the model '{origin}'"
        if not file.is_file():
            raise UsageError(
                f"no tokenizer: {file} does not exist. {hint}: copy it from there to this place, or set "
                "policy.tokenizer"
            )
        # a file that the user named may be a link; one of a folder stays in it
        self._tokenizer = _read(file, find_file(file) if path.is_dir() else Path(os.path.realpath(file)), hint)
        self._cuts_left = _cuts_left(file.with_name("tokenizer_config.json"))
        self._adds_special = bos is None
        self._first = [] if bos is None else [self._tokenizer.token_to_id(bos)]
        if None in self._first or self._tokenizer.get_vocab_size() > vocabulary:
            wanted = f"at most {vocabulary} tokens" + ("" if bos is None else f" and {bos}")
            raise UsageError(f"{file} is not the tokenizer of this model: it needs {wanted}. {hint}")
        self.encode = lru_cache(maxsize=256)(self._encode)

    def num_cut(self, text: str) -> int:
        """How many tokens of a text are cut."""
        return max(len(self._first) + len(self._ids(text)) - self._num_tokens, 0)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=self._adds_special).ids
        return ids

    def _encode(self, text: str) -> tuple[Array, Array]:
        """Tokens, int64 [L], and their mask, padded right."""
        ids, room = self._ids(text), self._num_tokens - len(self._first)
        if len(ids) > room and not self._may_cut:
            raise UsageError(
                f"the prompt has {len(ids)} tokens, and the model takes {room}: its advantage would be cut off. Shorten it: "
                f"{text[:80]!r}"
            )
        found = [*self._first, *(ids[-room:] if self._cuts_left else ids[:room])]
        tokens, mask = np.zeros(self._num_tokens, np.int64), np.zeros(self._num_tokens, np.bool_)
        tokens[: len(found)], mask[: len(found)] = found, True
        return tokens, mask


def _read(file: Path, found: Path, hint: str) -> Any:
    check_size(found, max_bytes=_MAX_TOKENIZER_BYTES)
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise UsageError("prompts need the package 'tokenizers': pip install 'dovetail[vlm]'") from error
    try:
        tokenizer = Tokenizer.from_file(str(found))
    except BaseException as error:  # the package raises nothing more specific, and a panic of Rust is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise CheckpointError(
            f"{file} is no tokenizer ({shown(one_line(error), max_chars=300)}). {hint}: copy it again"
        ) from error
    tokenizer.no_truncation()  # a file may keep the lengths of its last use
    tokenizer.no_padding()
    return tokenizer


def _cuts_left(config: Path) -> bool:
    """SmolVLM2's tokenizer keeps the end of a long text. Only its tokenizer_config.json says so."""
    return config.is_file() and read_json(config).get("truncation_side") == "left"
