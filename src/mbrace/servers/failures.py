"""What went wrong with a request: whether another try may help, whose fault it was, and the server's words for it."""

from __future__ import annotations

import ast
import email.utils
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mbrace.errors import ServiceError, UserError

RETRIED = {408, 409, 425, 429}  # and 5xx, but for those of NEVER_RETRIED
NEVER_RETRIED = {501, 505}  # "not implemented" does not change
MOST_READ = 100_000  # characters of a message: a list written in it takes 250 times its size, and seconds per megabyte
REQUEST_AT_FAULT = {400, 413, 414, 422}  # statuses that may be about one request: its source is too long, say


class RequestError(UserError):
    """A request failed, and it is not clear whether others would. `refused`: the server rejected this one. `status` is
    that of its answer, 0 if there was none."""

    def __init__(self, message: str, refused: bool = False, status: int = 0) -> None:
        super().__init__(message)
        self.refused, self.status = refused, status


class StatusError(ServiceError):
    """The server refused a request, as it would refuse any other; `status` is that of its answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class UselessError(ValueError):
    """An answer that can be read and that no further try would change; the server is at fault."""


@dataclass(eq=False)
class Failure(Exception):  # noqa: N818  (another try may help)
    """A try that failed."""

    reason: str
    status: int = 0  # 0: there is no status
    retry_after: str | None = None
    unreachable: bool = False
    final: bool = False  # another try would change nothing

    def __str__(self) -> str:
        return f"status {self.status}: {self.reason}" if self.status else self.reason

    @property
    def is_retried(self) -> bool:
        """Whether another try may help."""
        if self.final or self.status in NEVER_RETRIED:
            return False
        if self.status == 500 and "validation error" in self.reason:  # what llama-cpp-python says of a bad request
            return False
        return self.status == 0 or self.status >= 500 or self.status in RETRIED

    @property
    def is_of_service(self) -> bool:
        """Whether other requests would fail too."""
        may_be_this_one = self.status == 0 or self.status >= 500 or self.status in REQUEST_AT_FAULT | RETRIED - {429}
        return self.unreachable or self.final or not may_be_this_one


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


def status_in(found: dict[str, Any]) -> int:
    """The status in an error; 0 if there is none."""
    error = found["error"]
    code = error.get("code", error.get("status")) if isinstance(error, dict) else None
    return int(str(code)) if re.fullmatch("[45][0-9][0-9]", str(code)) else 0


def message_of(found: Any) -> str:
    """The server's error message, on one line."""
    error = found.get("error", found.get("detail", found)) if isinstance(found, dict) else found
    message = error.get("message", error) if isinstance(error, dict) else error
    if isinstance(message, str):
        message = message[:MOST_READ]
    if isinstance(message, str) and message.startswith("[{"):  # vLLM: such a list as Python writes it
        with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            message = ast.literal_eval(message)
    if isinstance(message, list):  # FastAPI: what is wrong with each field
        message = "; ".join(map(_field_error, message))
    return " ".join(str(message).split()) or "no reason given"


def _field_error(found: Any) -> str:
    if not isinstance(found, dict) or "msg" not in found:
        return str(found)
    loc = found.get("loc")
    place = ".".join(str(part) for part in loc if part != "body") if isinstance(loc, list | tuple) else ""
    return f"{place}: {found['msg']}" if place else str(found["msg"])
