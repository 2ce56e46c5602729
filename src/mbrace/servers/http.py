"""JSON over HTTP to a server that may be busy, slow or broken: retries where that can help, else a clear error."""

from __future__ import annotations

import email.utils
import json
import random
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from mbrace.errors import UserError, require

Answer = TypeVar("Answer")
FIRST_WAIT = 0.5  # seconds before the second try; doubled for each further try
LONGEST_WAIT = 60.0  # seconds; a server may ask for more
RETRIED = {408, 409, 425, 429, 500, 502, 503, 504, 529}


class Client:
    """Posts to one address from many threads, with retries."""

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        retries: int = 6,
        timeout: float = 120.0,
        connections: int = 8,
    ) -> None:
        self._httpx = require("httpx", extra="models")
        if not url.startswith(("http://", "https://")):
            raise UserError(f"{url}: not a URL of a server; give one such as http://localhost:8000/v1")
        self.url, self._retries = url, retries
        limits = self._httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = self._httpx.Client(timeout=timeout, limits=limits, headers=headers)
        self._not_before = 0.0  # a server's Retry-After holds for all threads
        self._lock = threading.Lock()

    def post(self, body: Any, read: Callable[[Any], Answer]) -> Answer:
        """Post `body`; `read` turns the JSON answer into the result. If it cannot (ValueError, KeyError, ...), the
        answer was cut off or garbled, and is asked for again."""
        failure = ""
        for attempt in range(self._retries + 1):
            self._pause()
            try:
                response = self._client.post(self.url, json=body)
            except self._httpx.TransportError as error:  # time-outs, refused and cut connections
                failure = f"{type(error).__name__} ({error})" if str(error) else type(error).__name__
                self._back_off(attempt, None)
                continue
            if response.status_code == 200:
                try:
                    return read(json.loads(response.content))
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    failure = f"an answer that cannot be read ({error})"
            elif response.status_code in RETRIED:
                failure = f"status {response.status_code} ({_reason(response)})"
            else:
                raise UserError(f"{self.url}: status {response.status_code}: {_reason(response)}")
            self._back_off(attempt, response.headers.get("retry-after"))
        raise UserError(f"{self.url}: gave up after {self._retries + 1} tries; the last: {failure}")

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _pause(self) -> None:
        """Wait until the server accepts requests again."""
        while True:
            with self._lock:
                seconds = self._not_before - time.monotonic()
            if seconds <= 0:
                return
            time.sleep(seconds)

    def _back_off(self, attempt: int, asked: str | None) -> None:
        """Wait after a failed try: twice as long each time, with jitter so that threads do not return at once. If the
        server asked for a wait (Retry-After), all threads wait that long before their next request."""
        if attempt == self._retries:
            return
        seconds = retry_after(asked)
        if seconds is not None:
            with self._lock:
                self._not_before = max(self._not_before, time.monotonic() + seconds)
            return
        time.sleep(min(LONGEST_WAIT, FIRST_WAIT * 2**attempt) * random.uniform(0.5, 1.0))


def base_url(url: str) -> str:
    """A server's URL with /v1 at its end, which may be left out."""
    url = url.rstrip("/")
    return url if url.endswith("/v1") else url + "/v1"


def retry_after(value: str | None) -> float | None:
    """The seconds to wait that a Retry-After header asks for, as a number or a date."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


def _reason(response: Any) -> str:
    """The server's error message, on one line."""
    try:
        found = json.loads(response.content)
        error = found.get("error", found) if isinstance(found, dict) else found
        message = error.get("message", error) if isinstance(error, dict) else error
    except ValueError:
        message = response.text
    return " ".join(str(message).split())[:300] or "no reason given"
