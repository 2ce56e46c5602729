"""For the tests of `mbrace judge`: small studies, and the real command in a process of its own."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode, urlsplit

# The words that tell the systems apart for a test, though not by name: a rater who always prefers "good" prefers A.
GOOD, BAD = "good", "poor"


def write_study(folder: Path, count: int, equal: int = 0) -> list[str]:
    """Write the outputs of two systems and their sources; the command's arguments to judge them."""
    numbers = range(count + equal)
    a = [{"id": f"secret-{n}", "text": f"A {GOOD} translation, number {n}"} for n in numbers]
    b = [{"id": f"secret-{n}", "text": f"A {BAD if n < count else GOOD} translation, number {n}"} for n in numbers]
    source = [{"id": f"secret-{n}", "source": f"Der Satz Nummer {n}"} for n in numbers]
    for name, records in (("secret-a.jsonl", a), ("secret-b.jsonl", b), ("secret-s.jsonl", source)):
        write_jsonl(folder / name, records)
    names = [str(folder / name) for name in ("secret-a.jsonl", "secret-b.jsonl", "secret-s.jsonl", "ratings.db")]
    return [names[0], names[1], "--source", names[2], "-o", names[3]]


def write_jsonl(path: Path, records: list[dict[str, object]]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


@dataclass
class Server:
    """`mbrace judge` on a port of this machine, until the `with` block ends."""

    arguments: list[str]
    port: int = 0
    links: list[str] = field(default_factory=list)
    printed: str = ""

    def __enter__(self) -> Server:
        command = [sys.executable, "-m", "mbrace", "judge", *self.arguments, "--port", str(self.port)]
        source = str(Path(__file__).parent.parent / "src")
        paths = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": paths} if not _installed() else dict(os.environ)
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed += line
            if line.startswith("Serving"):
                break
        self.links = re.findall(r"http\S+", self.printed)
        assert self.links, self.stop()
        self.port = urlsplit(self.links[0]).port or 0
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def kill(self) -> None:
        """kill -9: nothing of the server's own can run any more."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def stop(self) -> str:
        """Ctrl-C; what the command still wrote."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        if self.process.stdout is None or self.process.stdout.closed:
            return ""
        return "".join(self.process.communicate(timeout=120))


def _installed() -> bool:
    """Is the package under test the installed one? Then the command must find it without our help."""
    import mbrace

    return "site-packages" in str(mbrace.__file__)


def post(link: str, action: str, origin: str | None = None, **fields: object) -> int:
    """Send a form as a browser would, on a connection of its own; the status of the answer."""
    parts = urlsplit(link)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
    try:
        headers = {
            "Origin": origin or f"http://{parts.netloc}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        connection.request("POST", f"{parts.path}/{action}", urlencode(fields), headers)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()
