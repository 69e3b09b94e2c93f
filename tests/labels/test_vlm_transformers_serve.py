"""The labeler against a real server: `transformers serve`, with a tiny model made on the spot."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.core.errors import LabelError
from dovetail.labels._chat_client import ChatClient, ServerConfig
from dovetail.labels.learned.local_vlm import LocalVLM
from dovetail.labels.vlm import VLMConfig, VLMLabeler
from support.camera_episodes import camera_episode, picture_part
from support.tiny_vlm import make_tiny_vlm


class Served:
    def __init__(self, url: str, folder: Path, log: Path) -> None:
        self.url = url
        self.folder = folder
        self.log = log

    def config(self, **other: Any) -> VLMConfig:
        return VLMConfig(url=self.url, **{"model": str(self.folder), "max_tokens": 24, "tries": 2, **other})


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for all tests here: it takes some seconds to start."""
    home = tmp_path_factory.mktemp("serve")
    folder, log = make_tiny_vlm(home / "tiny"), home / "serve.log"
    environment = {**os.environ, "HF_HOME": str(home / "hf"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    for _ in range(3):  # a port that is free now may be taken a moment later
        port = _free_port()
        command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(folder)]
        command += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
        with log.open("w") as file:
            process = subprocess.Popen(
                command, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            if _is_up(process, f"http://127.0.0.1:{port}/health"):
                yield Served(f"http://127.0.0.1:{port}/v1", folder, log)
                return
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    pytest.fail(f"transformers serve did not start: {log.read_text()[-2000:]}")


def _free_port() -> int:
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return int(it.getsockname()[1])


def _is_up(process: subprocess.Popen[bytes], url: str) -> bool:
    until_s = time.monotonic() + 120.0
    while process.poll() is None and time.monotonic() < until_s:
        try:
            with urllib.request.urlopen(url, timeout=5.0) as answer:
                return bool(answer.status == 200)
        except OSError:
            time.sleep(0.05)
    return False


@pytest.mark.extended
def test_served_model_answers_are_parsed_or_refused(served: Served, make_episode: Any) -> None:
    """The server answers, but its random text gives no label."""
    before = served.log.read_text().count('"POST /v1/chat/completions HTTP/1.1" 200')
    with pytest.raises(LabelError, match="no JSON object with the question's id"):
        VLMLabeler(served.config(num_frames=3)).label(camera_episode(make_episode))
    after = served.log.read_text().count('"POST /v1/chat/completions HTTP/1.1" 200')
    assert after - before == 2  # all tries; the server answers each, but not with valid JSON


def test_server_and_local_model_give_same_label(served: Served) -> None:
    """The same model, asked the same, here and there: so the pictures came through as they are."""
    chat, local = ChatClient(served.config()), LocalVLM(served.folder, max_tokens=24, device="cpu")
    answers = set()
    for level in (0, 255):
        content = [{"type": "text", "text": "look: "}, picture_part(level)]
        messages = [{"role": "system", "content": "judge"}, {"role": "user", "content": content}]
        answers.add(chat.ask(messages))
        assert chat.ask(messages) == local.ask(messages)
    assert len(answers) == 2


def test_unknown_model_name_is_refused(served: Served, make_episode: Any) -> None:
    with pytest.raises(LabelError, match="refused the question with status 400"):
        VLMLabeler(served.config(model="other")).label(camera_episode(make_episode))


def test_server_without_model_list_needs_model_name(served: Served, make_episode: Any) -> None:
    """It lists those in its cache, and a folder is in none."""
    unnamed = ServerConfig(url=served.url, tries=1)
    with pytest.raises(LabelError, match="name one in `model`"):
        _ = ChatClient(unnamed).model
