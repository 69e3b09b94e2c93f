"""Prompts to tokens with PaliGemma's tokenizer. The tokens of a prompt are computed once."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.core.errors import CheckpointError, UsageError, one_line
from dovetail.core.types import Array

__all__ = ["PromptTokenizer"]

_ORIGIN = "It is in the model 'google/paligemma-3b-pt-224'"


class PromptTokenizer:
    """`path` is a tokenizer.json or a folder with one."""

    def __init__(self, path: Path, *, num_tokens: int, cleans: bool, vocabulary: int) -> None:
        self._num_tokens, self._cleans = num_tokens, cleans
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            raise UsageError(
                f"policy 'pi0' has no tokenizer: {file} does not exist. {_ORIGIN}: set policy.tokenizer"
            )
        self._tokenizer = _read(file)
        self._bos = self._tokenizer.token_to_id("<bos>")
        if self._bos is None or self._tokenizer.get_vocab_size() > vocabulary:
            raise UsageError(
                f"{file} is not PaliGemma's tokenizer: it needs <bos> and at most {vocabulary} tokens. {_ORIGIN}"
            )
        self.encode = lru_cache(maxsize=256)(self._encode)

    def _encode(self, prompt: str) -> tuple[Array, Array]:
        """Tokens, int64 [L], and their mask, padded right: <bos>, the prompt, a newline. A longer prompt is cut."""
        if self._cleans:
            prompt = prompt.strip().replace("_", " ").replace("\n", " ")
        text = prompt if prompt.endswith("\n") else f"{prompt}\n"
        found = [self._bos, *self._tokenizer.encode(text, add_special_tokens=False).ids][: self._num_tokens]
        tokens, mask = np.zeros(self._num_tokens, np.int64), np.zeros(self._num_tokens, np.bool_)
        tokens[: len(found)], mask[: len(found)] = found, True
        return tokens, mask


def _read(file: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise UsageError("policy 'pi0' needs the package 'tokenizers': pip install 'dovetail[vlm]'") from error
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises nothing more specific
        raise CheckpointError(f"{file} is no tokenizer ({one_line(error)}). {_ORIGIN}: copy it again") from error
