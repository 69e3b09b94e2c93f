"""A fake chat API server with configurable answers and faults."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from PIL import Image


@dataclass
class Question:
    """One question to the server."""

    token: str
    text: str
    pictures: list[np.ndarray]
    headers: dict[str, str]
    model: str


@dataclass
class ChatServer:
    answer: Callable[[Question], dict[str, Any] | str]
    faults: list[str] = field(default_factory=list)  # one per question; afterwards none
    questions: list[Question] = field(default_factory=list)
    most_at_once: int = 0
    url: str = ""
    num_questions: int = 0
    _now: int = 0
    _lock: Any = field(default_factory=threading.Lock)

    @contextmanager
    def running(self) -> Iterator[ChatServer]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        server.daemon_threads = True
        self.url = f"http://127.0.0.1:{server.server_port}/v1"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        chat = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(200, json.dumps({"data": [{"id": "tiny"}]}).encode())

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with chat._lock:
                    chat.num_questions += 1
                    chat._now += 1
                    chat.most_at_once = max(chat.most_at_once, chat._now)
                    fault = chat.faults.pop(0) if chat.faults else "none"
                if fault == "slow":
                    time.sleep(0.5)
                with chat._lock:
                    chat._now -= 1  # before the answer, because the client may ask again at once
                self._answer(body, fault)

            def _answer(self, body: dict[str, Any], fault: str) -> None:
                if fault.isdigit():
                    self._send(int(fault), b"{}", **({"Retry-After": "0.01"} if fault == "429" else {}))
                    return
                if fault == "elsewhere":
                    self._send(302, b"", Location="http://127.0.0.1:9/v1/chat/completions")
                    return
                question = _parse_question(body, dict(self.headers))
                chat.questions.append(question)
                answer = chat.answer(question)
                if fault == "wrong length" and isinstance(answer, dict):
                    answer = {**answer, "progress": answer["progress"][:-1]}
                text = answer if isinstance(answer, str) else json.dumps(answer)
                text = {"nonsense": "As a robot, I", "silence": ""}.get(fault, text)
                data = json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()
                if fault == "strange":
                    data = b'{"choices": []}'
                if fault == "truncated":
                    data = data[: len(data) // 2]
                if fault == "huge":
                    data = b" " * (5 << 20) + data
                if fault == "drip":
                    self._drip(data)
                    return
                if fault == "cut":
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data[:5])
                    self.close_connection = True
                    return
                self._send(200, data)

            def _send(self, status: int, data: bytes, **headers: str) -> None:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(data)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def _drip(self, data: bytes) -> None:
                """Send single bytes so slowly that the answer never completes."""
                self.send_response(200)
                self.end_headers()
                with contextlib.suppress(OSError):  # until the client disconnects
                    for byte in data:
                        self.wfile.write(bytes([byte]))
                        time.sleep(0.02)

            def log_message(self, *_: Any) -> None: ...

        return Handler


def _parse_question(body: dict[str, Any], headers: dict[str, str]) -> Question:
    content = body["messages"][-1]["content"]
    text = "\n".join(part["text"] for part in content if part["type"] == "text")
    urls = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
    pictures = [np.array(Image.open(io.BytesIO(base64.b64decode(url.split(",", 1)[1])))) for url in urls]
    token = re.findall(r'"id": "([0-9a-f]{16})"', text)[-1]
    return Question(token=token, text=text, pictures=pictures, headers=headers, model=body["model"])


def bright(question: Question) -> dict[str, Any]:
    """Success if the last frame is bright; the progress is the brightness."""
    light = [float(picture.mean()) / 255 for picture in question.pictures]
    return {"id": question.token, "success": light[-1] > 0.5, "confidence": 0.9, "progress": light}
