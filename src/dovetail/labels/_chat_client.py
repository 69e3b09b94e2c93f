"""Client of the OpenAI chat API, which vLLM, SGLang, Ollama, `transformers serve` and hosted models support."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import random
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.disk import MAX_JSON_BYTES, parse_json
from dovetail.core.errors import LabelError, shown

__all__ = ["ChatClient", "ServerConfig"]

_MAX_ANSWER_BYTES = MAX_JSON_BYTES
_MAX_WAIT_S = 60.0


class ServerConfig(Config):
    BASIC: ClassVar[Collection[str]] = ("url", "model")

    url: str = Field(default="http://127.0.0.1:8000/v1", pattern=r"^https?://[^\s@]+$")
    """Base URL of the chat API, without a password."""
    model: str | None = None
    """Name of the model; null: the first that the server lists."""
    key_env: str | None = None
    """Name of the environment variable with the API key, if the server needs one. Never write the key into a file."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Time limit of each attempt, in seconds."""
    tries: int = Field(default=4, ge=1, le=20)
    """Maximum number of attempts per question."""
    backoff_s: float = Field(default=1.0, ge=0)
    """Wait before the second attempt, in seconds. It doubles before each further attempt."""
    max_concurrent: int = Field(default=4, ge=1)
    """Maximum number of concurrent questions."""
    max_tokens: int = Field(default=1024, ge=16)
    """Maximum length of an answer, in tokens."""


class ChatClient:
    """Sends messages to a model and returns its answer. Errors are one line and never contain the key."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._slots = threading.Semaphore(config.max_concurrent)
        self._model = config.model

    @property
    def num_tries(self) -> int:
        """Maximum number of attempts to get a valid answer."""
        return self._config.tries

    @property
    def model(self) -> str:
        """Name of the model, from the config or from the server."""
        if self._model is None:
            try:
                self._model = self._without_key(str(self._call("models", None)["data"][0]["id"]))
            except (KeyError, IndexError, TypeError):
                raise LabelError(f"{self._config.url} lists no models. Name one in `model`.") from None
            except LabelError as error:
                raise LabelError(f"{error} (if the server cannot list its models, name one in `model`)") from None
        return self._model

    def ask(self, messages: Sequence[Mapping[str, Any]]) -> str:
        question = {
            "model": self.model,
            "messages": list(messages),
            "temperature": 0.0,
            "max_tokens": self._config.max_tokens,
        }
        answer = self._call("chat/completions", question)
        try:
            text = answer["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError):
            raise LabelError(
                f"the answer of {self._config.url} does not have the format of the chat API"
            ) from None
        if not isinstance(text, str):
            raise LabelError(f"the answer of {self._config.url} contains no text")
        return self._without_key(text)

    def _call(self, what: str, body: Mapping[str, Any] | None) -> Any:
        config, wait_s, last = self._config, self._config.backoff_s, _RetryableError("")
        for number in range(config.tries):
            if number:
                # random, so that clients that failed together do not retry together
                time.sleep(min(max(wait_s * random.uniform(0.75, 1.25), last.wait_s), _MAX_WAIT_S))
                wait_s *= 2.0
            try:
                with self._slots:
                    return self._once(what, body)
            except _RetryableError as error:
                last = error
        attempts = "1 attempt" if config.tries == 1 else f"{config.tries} attempts"
        raise LabelError(f"{config.url} gave no answer after {attempts}: {last}")

    def _once(self, what: str, body: Mapping[str, Any] | None) -> Any:
        config, started_s = self._config, time.monotonic()
        request = _Question(
            f"{config.url.rstrip('/')}/{what}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", **self._authorization()},
        )
        try:
            with _opener.open(request, timeout=config.timeout_s) as response:
                data = _read(response, until_s=started_s + config.timeout_s)
        except urllib.error.HTTPError as error:
            status, after = error.code, error.headers.get("Retry-After", "")
            error.close()
            if status in (408, 409, 425, 429) or status >= 500:
                raise _RetryableError(f"status {status}", wait_s=_seconds(after)) from None
            raise LabelError(f"{config.url} refused the question with status {status}{_hint(status)}") from None
        except (OSError, http.client.HTTPException) as error:
            if time.monotonic() - started_s >= config.timeout_s:
                raise _RetryableError("timed out") from None
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            text = self._without_key(str(reason or error))  # a server may repeat it
            raise _RetryableError(shown(text, max_chars=300) or type(error).__name__) from None
        finally:
            request.stop_timers()
        if len(data) > _MAX_ANSWER_BYTES:
            raise _RetryableError("the answer is larger than 4 MB")
        try:
            return parse_json(data)
        except ValueError:
            raise _RetryableError("the answer is not valid JSON") from None

    def _authorization(self) -> dict[str, str]:
        name, key = self._config.key_env, self._key()
        if name is None:
            return {}
        if not key or not key.isascii() or not key.isprintable():
            raise LabelError(f"the environment variable {name} contains no key for {self._config.url}; set it")
        return {"Authorization": f"Bearer {key}"}

    def _key(self) -> str:
        return os.environ.get(self._config.key_env or "", "")

    def _without_key(self, text: str) -> str:
        """Remove the key from a text, in case the server repeats it."""
        key = self._key()
        return text.replace(key, "***") if key else text


class _RetryableError(Exception):
    """A failure that a later attempt may avoid; `wait_s` is the server's requested delay."""

    def __init__(self, why: str, *, wait_s: float = 0.0) -> None:
        super().__init__(why)
        self.wait_s = wait_s


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which would send the key to another server."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _Question(urllib.request.Request):
    """A request whose connections end after its timeout, whatever has arrived. Otherwise a server could send a byte, or an
    interim answer, before each timeout of the socket, and the call would never return."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._timers: list[threading.Timer] = []

    def end_in_time(self, sock: socket.socket) -> None:
        assert self.timeout is not None  # `urlopen` sets it
        timer = threading.Timer(self.timeout, _disconnect, [sock])
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def stop_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()


def _disconnect(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # closed already
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # of TLS, too: its own would wait for the other side


class _Connection(http.client.HTTPConnection):
    def __init__(self, *arguments: Any, question: _Question, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._question = question

    def connect(self) -> None:
        super().connect()
        self._question.end_in_time(self.sock)


class _TlsConnection(http.client.HTTPSConnection):
    def __init__(self, *arguments: Any, question: _Question, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._question = question

    def connect(self) -> None:
        super().connect()
        self._question.end_in_time(self.sock)


class _HttpHandler(urllib.request.HTTPHandler):
    def http_open(self, request: Any) -> Any:
        return self.do_open(partial(_Connection, question=request), request)


class _HttpsHandler(urllib.request.HTTPSHandler):
    def https_open(self, request: Any) -> Any:
        return self.do_open(partial(_TlsConnection, question=request), request)


_opener = urllib.request.build_opener(_NoRedirect, _HttpHandler, _HttpsHandler)


def _read(response: http.client.HTTPResponse, *, until_s: float) -> bytes:
    """Read an answer up to slightly more than the allowed size. Raises TimeoutError after `until_s`."""
    data = b""
    while len(data) <= _MAX_ANSWER_BYTES:
        piece = response.read1(1 << 16)
        if time.monotonic() > until_s:  # also if it has ended: the timer may have ended it
            raise TimeoutError("timed out")
        if not piece:
            break
        data += piece
    return data


def _seconds(header: str) -> float:
    try:
        value = float(header)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) and value > 0 else 0.0


def _hint(status: int) -> str:
    return "; set key_env to the variable with its key" if status in (401, 403) else ""
