"""JSON over HTTP to a server that may be busy, slow or broken: retries where that can help, or a clear error."""

from __future__ import annotations

import email.utils
import json
import logging
import math
import os
import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from mbrace.errors import ServiceError, UserError, check_whole, require
from mbrace.servers.secrets import hide, hide_credentials, secrets_of

Answer = TypeVar("Answer")
FIRST_WAIT = 0.5  # seconds before the second try; doubled for each further try
LONGEST_WAIT = 60.0  # seconds
LONGEST_ASKED_WAIT = 300.0  # seconds; a server that asks for a longer wait (Retry-After) is tried again after this one
ANNOUNCED_WAIT = 1.0  # seconds; shorter waits are not worth a message
ANNOUNCE_EVERY = 5.0  # seconds between messages, since many threads may wait for one server
RETRIED = {408, 409, 425, 429}  # and 5xx
REQUEST_AT_FAULT = {400, 413, 414, 422}  # statuses that may be about one request: its source is too long, say

log = logging.getLogger("mbrace")


class RequestError(UserError):
    """A request failed, and it is not clear whether others would. `refused`: the server rejected this one."""

    def __init__(self, message: str, *, refused: bool) -> None:
        super().__init__(message)
        self.refused = refused


@dataclass(frozen=True)
class _Failure:
    """A try that failed."""

    reason: str
    status: int = 0  # 0: there is no status
    retry_after: str | None = None
    unreachable: bool = False

    @property
    def is_retried(self) -> bool:
        return self.status == 0 or self.status >= 500 or self.status in RETRIED

    @property
    def is_of_service(self) -> bool:
        """Whether other requests would fail too."""
        may_be_this_one = self.status == 0 or self.status >= 500 or self.status in REQUEST_AT_FAULT | RETRIED - {429}
        return self.unreachable or not may_be_this_one


class Client:
    """Posts to one endpoint of a server from many threads, with retries.

    `url` is the server's, with or without /v1 at its end; `api_key` is by default that in OPENAI_API_KEY.
    """

    def __init__(
        self, url: str, endpoint: str, *, api_key: str | None, concurrency: int, retries: int, timeout: float
    ) -> None:
        check_whole("concurrency", concurrency, least=1)
        check_whole("retries", retries, least=0)
        self._httpx = require("httpx", extra="models")
        api_key = os.environ.get("OPENAI_API_KEY") if api_key is None else api_key
        self.url = hide_credentials(url)  # as messages show it
        try:
            self._secrets = secrets_of(url, api_key)
            address = _address(url, endpoint)
            self._url = self._httpx.URL(address)
            if not url.startswith(("http://", "https://")) or not self._url.host:
                raise ValueError
        except (ValueError, self._httpx.InvalidURL):
            message = f"{self.url}: not a URL of a server; give one such as http://localhost:8000/v1"
            raise UserError(message) from None
        self.url = hide_credentials(address)
        self._retries = retries
        limits = self._httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = self._httpx.Client(timeout=timeout, limits=limits, headers=headers)
        self._not_before = 0.0  # when requests may be sent again: a Retry-After applies to all threads
        self._announced = -math.inf
        self._lock = threading.Lock()
        self._interrupted = Event()
        self.has_answered = False  # at least one request

    def post(self, body: Any, read: Callable[[Any], Answer]) -> Answer:
        """Post `body`; `read` turns the JSON answer into the result. If it cannot (ValueError, KeyError, ...), the
        answer was cut off or garbled, and the request is sent again. ServiceError if other requests would fail too,
        RequestError if that is not clear."""
        failures = 0
        while True:
            self._pause()
            answer, failure = self._try(body, read)
            if failure is None:
                self.has_answered = True
                return answer  # type: ignore[return-value]
            failures += 1
            if failures > self._retries or not failure.is_retried:
                break
            self._back_off(failures, failure)
        message = f"{self.url}: status {failure.status}: {failure.reason}"
        if failure.is_retried:
            status = f"status {failure.status} ({failure.reason})" if failure.status else failure.reason
            message = f"{self.url}: gave up after {failures} tries; the last: {status}"
        if failure.is_of_service:
            raise ServiceError(message)
        raise RequestError(message, refused=not failure.is_retried)

    def answers(self, body: Any, read: Callable[[Any], Any]) -> bool:
        """Whether the server answers this request now, with something that can be read."""
        return self._try(body, read)[1] is None

    def interrupt(self) -> None:
        """End all waits for another try, now and in future: a request that fails is not sent again."""
        self._interrupted.set()

    def close(self) -> None:
        """Close the connections."""
        self.interrupt()
        self._client.close()

    def _try(self, body: Any, read: Callable[[Any], Answer]) -> tuple[Answer | None, _Failure | None]:
        httpx = self._httpx
        try:
            response = self._client.post(self._url, json=body)
        except httpx.RequestError as error:  # time-outs, refused and cut connections
            words = f"{type(error).__name__} ({error})" if str(error) else type(error).__name__
            may_be_this_one = isinstance(error, (httpx.ReadTimeout, httpx.ReadError, httpx.RemoteProtocolError))
            return None, _Failure(self._hide(words), unreachable=not may_be_this_one)
        after = response.headers.get("retry-after")
        try:
            found = json.loads(response.content)
        except (ValueError, RecursionError) as error:
            found, unreadable = None, str(error)
        else:
            unreadable = ""
        if response.status_code != 200:
            words = _message_of(response.text if found is None else found)
            return None, _Failure(self._hide(words), response.status_code, after)
        if isinstance(found, dict) and found.get("error") and not found.get("choices"):  # an error with status 200
            return None, _Failure(self._hide(f"the server says: {_message_of(found)}"), _status_in(found), after)
        try:
            if unreadable:
                raise ValueError(unreadable)
            return read(found), None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return None, _Failure(self._hide(f"an answer that cannot be read ({error})"), retry_after=after)

    def _hide(self, text: str) -> str:
        return hide(text, self._secrets)

    def _pause(self) -> None:
        """Wait until the server accepts requests again."""
        while True:
            with self._lock:
                seconds = self._not_before - time.monotonic()
            if seconds <= 0:
                return
            self._wait(seconds)

    def _wait(self, seconds: float) -> None:
        if self._interrupted.wait(seconds):
            raise ServiceError(f"{self.url}: interrupted while waiting to try again")

    def _back_off(self, failures: int, failure: _Failure) -> None:
        """Wait after a failed try, the number `failures`: twice as long each time, with jitter so that threads do not
        return at once. If the server asked for a wait (Retry-After), all threads wait that long before their next
        request."""
        asked = retry_after(failure.retry_after)
        if not asked:
            seconds = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(failures - 1, 30)) * random.uniform(0.5, 1.0)
            self._announce(seconds, failures, failure)
            self._wait(seconds)
            return
        seconds = min(asked, LONGEST_ASKED_WAIT)
        with self._lock:
            self._not_before = max(self._not_before, time.monotonic() + seconds)
        more = f"; the server asks for {asked:.0f} s" if asked > seconds else ""
        self._announce(seconds, failures, failure, more)

    def _announce(self, seconds: float, failures: int, failure: _Failure, more: str = "") -> None:
        with self._lock:
            now = time.monotonic()
            if seconds < ANNOUNCED_WAIT or now < self._announced + ANNOUNCE_EVERY:
                return
            self._announced = now
        status = f"status {failure.status}: " if failure.status else ""
        tries = f"try {failures + 1} of {self._retries + 1}"
        log.warning("%s: %s%s; %s in %.0f s%s", self.url, status, failure.reason, tries, seconds, more)


def retry_after(value: str | None) -> float | None:
    """The seconds that a Retry-After header, a number or a date, asks to wait; None if it makes no sense."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
        except (ValueError, TypeError, OverflowError, OSError):
            return None
    return seconds if seconds >= 0 else None


def _address(url: str, endpoint: str) -> str:
    """The URL of an endpoint of a server, whose own may lack the /v1 at its end; its query stays."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/").removesuffix("/v1")
    return urlunsplit(parts._replace(path=f"{path}/v1{endpoint}", fragment=""))


def _status_in(found: dict[str, Any]) -> int:
    """The status in an error; 0 if there is none."""
    error = found["error"]
    code = error.get("code", error.get("status")) if isinstance(error, dict) else None
    return int(str(code)) if re.fullmatch("[45][0-9][0-9]", str(code)) else 0


def _message_of(found: Any) -> str:
    """The server's error message, on one line."""
    error = found.get("error", found) if isinstance(found, dict) else found
    message = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(message).split())[:300] or "no reason given"
