"""A vision-language model in this process, from a folder written by `save_pretrained` of transformers.

Weights are safetensors, code in the folder is never run, and nothing is downloaded. transformers is an extra
(`pip install dovetail[vlm]`) and is imported at the first question.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import importlib.util
import io
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from dovetail.core.errors import LabelError, UsageError, one_line

__all__ = ["LocalVLM"]

_MODEL_SUFFIXES = (".json", ".jinja", ".safetensors")  # files that determine the model's answers


class LocalVLM:
    """Has the interface of `ChatClient`: the same messages and errors."""

    num_tries = 1  # the answer is deterministic

    def __init__(self, folder: Path, *, max_tokens: int, device: str) -> None:
        if importlib.util.find_spec("transformers") is None:
            raise UsageError(
                "labeler vlm with model_folder needs transformers. Install it with: pip install 'dovetail[vlm]'"
            )
        if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
            raise UsageError(
                f"{folder} is not a model folder: it must contain config.json and safetensors, as save_pretrained of "
                "transformers writes them"
            )
        self._folder = folder
        self._max_tokens = max_tokens
        self._device = "cuda" if device == "auto" and torch.cuda.is_available() else device.replace("auto", "cpu")
        self._lock = threading.Lock()  # one question at a time
        self._loaded: tuple[Any, Any] | None = None
        self._model: str | None = None

    @property
    def model(self) -> str:
        """Name of the folder and digest of its contents."""
        if self._model is None:
            digest = hashlib.sha256()
            for path in sorted(path for path in self._folder.iterdir() if path.suffix in _MODEL_SUFFIXES):
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
            self._model = f"{self._folder.resolve().name}-{digest.hexdigest()[:12]}"
        return self._model

    def ask(self, messages: Sequence[Mapping[str, Any]]) -> str:
        with self._lock:
            processor, model = self._loaded = self._loaded or self._load()
            try:
                return self._generate(processor, model, [_to_transformers(message) for message in messages])
            except Exception as error:  # third-party code may raise anything; the episode waits then
                raise LabelError(f"the model in {self._folder} gave no answer: {one_line(error)}") from error

    def _generate(self, processor: Any, model: Any, messages: list[dict[str, Any]]) -> str:
        inputs = processor.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
        ).to(model.device)
        with torch.inference_mode():
            tokens = model.generate(**inputs, do_sample=False, max_new_tokens=self._max_tokens)
        text: str = processor.decode(tokens[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        return text

    def _load(self) -> tuple[Any, Any]:
        transformers: Any = importlib.import_module("transformers")  # takes seconds; has few types
        torch.set_num_threads(1)  # several processes with several threads each would slow each other down
        transformers.utils.logging.disable_progress_bar()
        safe = {"local_files_only": True, "trust_remote_code": False}
        try:
            processor = transformers.AutoProcessor.from_pretrained(self._folder, **safe)
            model = transformers.AutoModelForImageTextToText.from_pretrained(
                self._folder, **safe, use_safetensors=True, dtype="auto"
            )
            return processor, model.to(self._device).eval()
        except Exception as error:  # as above, but another attempt would fail too
            raise UsageError(f"cannot load the model in {self._folder}: {one_line(error)}") from error


def _to_transformers(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {"role": message["role"], "content": [_part(part) for part in parts]}


def _part(part: Mapping[str, Any]) -> Mapping[str, Any]:
    if part["type"] != "image_url":
        return part
    data = base64.b64decode(part["image_url"]["url"].partition(",")[2])
    return {"type": "image", "image": Image.open(io.BytesIO(data)).convert("RGB")}
