"""Hides secrets in messages and outputs: credentials in a server's URL, and keys that a server repeats."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from urllib.parse import parse_qsl, unquote, urlsplit

HIDDEN = "***"
SHORTEST = 4  # characters; a shorter secret could not be hidden without garbling messages


def hide_credentials(url: str) -> str:
    """The URL without its user, its password and the values of its query, for outputs and messages."""
    shown = re.sub(r"(?<=//)[^/?#]*@", f"{HIDDEN}@", url, count=1)
    shown = re.sub(r"(?<=[?&])([^=&#]*)=[^&#]*", rf"\1={HIDDEN}", shown)
    return re.sub(r"#.*", "", shown)


def secrets_of(url: str, key: str | None) -> tuple[str, ...]:
    """The strings that are secret: the key, and what `hide_credentials` takes out of the URL, however it is encoded."""
    parts = urlsplit(url)
    plain = [value for _, value in parse_qsl(parts.query)]
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    if user:
        login = f"{unquote(user)}:{unquote(password)}"
        plain += [password or user, unquote(password or user), login, base64.b64encode(login.encode()).decode()]
    plain += [key or ""]
    return tuple(sorted({secret for secret in plain if len(secret) >= SHORTEST}, key=len, reverse=True))


def hide(text: str, secrets: Iterable[str]) -> str:
    """The text without the secrets."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return text
