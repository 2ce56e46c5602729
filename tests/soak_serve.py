"""`mbrace serve` under load (`make soak`): 64 clients for two minutes, half of them in front of llama.cpp, the others
in front of a stand-in whose draws repeat their prompt; both are killed and restarted while requests are open.

    python tests/soak_serve.py [--seconds 120] [--clients 64] [--record bench/results/soak_serve.tsv]

Every request must get one reply: its own answer (the stand-in's begins with the prompt) or a clear error, and the
endpoint must have counted as many answers as were received. Its memory must stay flat: it is compared with that after
warming up, which lasts until a first outage is over.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from quiet_server import QuietHandler, QuietServer
from real_servers import LLAMA, free_port, smollm2, wait_for

DRAWS, TOKENS = 4, 16
CLEAR = {422, 429, 502, 503, 504}  # none whole; too many; upstream is not there, or not yet
GROWTH = 1.15  # of the memory after warming up
OUTAGE = 3  # seconds before an upstream that was killed is started again
SAMPLES = 8  # of the memory, each after half a second: their median counts


class Echo(QuietHandler):
    """Draws that begin with their prompt."""

    def answer(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        asked, chance = body["messages"][-1]["content"], random.Random(body["seed"])
        texts = [f"{asked} {chance.randrange(1000)}" for _ in range(body["n"])]
        time.sleep(0.05)
        choices = [{"message": {"content": text}, "finish_reason": "stop"} for text in texts]
        usage = {"prompt_tokens": 9, "completion_tokens": 9 * len(texts)}
        self.send(200, json.dumps({"choices": choices, "usage": usage}).encode())

    def do_GET(self) -> None:  # noqa: N802
        self.send(200, b"{}")


@dataclass
class Side:
    """An upstream, the endpoint in front of it, and what its clients saw."""

    name: str
    upstream: list[str]  # the command that starts it, without its port
    is_own: Callable[[str, str], bool]  # whether an answer is that of a question
    sent: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    memories: list[float] = field(default_factory=list)

    def start(self) -> None:
        """Start both."""
        self.ports = free_port(), free_port()
        self.start_upstream()
        options = ["--server", f"http://127.0.0.1:{self.ports[0]}", "--server-model", "m", "--temperature", "0.5"]
        options += ["-n", str(DRAWS), "--port", str(self.ports[1]), "--timeout", "60"]
        self.endpoint = self._started(["-m", "mbrace", "serve", *options], self.ports[1])

    def start_upstream(self) -> None:
        self.process = self._started([*self.upstream, str(self.ports[0])], self.ports[0])

    def _started(self, command: list[str], port: int) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(f"http://127.0.0.1:{port}", process)
        return process

    async def outage(self) -> None:
        """Kill the upstream, and start it again."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        await asyncio.sleep(OUTAGE)
        await asyncio.to_thread(self.start_upstream)

    async def measure(self) -> None:
        """Note the resident memory of the endpoint, in megabytes."""
        found = []
        for _ in range(SAMPLES):
            status = Path(f"/proc/{self.endpoint.pid}/status").read_text()
            found.append(int(status.partition("VmRSS:")[2].split()[0]) / 1024)
            await asyncio.sleep(0.5)
        self.memories.append(statistics.median(found))

    async def client(self, number: int, is_over: asyncio.Event) -> None:
        """A question, its answer, the next question."""
        url = f"http://127.0.0.1:{self.ports[1]}/v1/chat/completions"
        async with httpx.AsyncClient(timeout=180) as http:
            while not is_over.is_set():
                self.sent += 1
                question = f"What is {number} + {self.sent}? Answer with the number only."
                body = {"messages": [{"role": "user", "content": question}], "max_tokens": TOKENS}
                began = time.monotonic()
                try:
                    response = await http.post(url, json=body)
                except httpx.HTTPError as error:
                    self.wrong.append(f"{type(error).__name__}: {error}")
                    continue
                self.statuses[response.status_code] += 1
                found: dict[str, Any] = response.json()
                if response.status_code == 200:
                    self.seconds.append(time.monotonic() - began)
                    text = found["choices"][0]["message"]["content"]
                    if not self.is_own(text, question) or found["mbrace"]["draws"] > DRAWS:
                        self.wrong.append(f"{question}: {found}")
                elif response.status_code not in CLEAR or not found["error"]["message"]:
                    self.wrong.append(f"status {response.status_code}: {found}")
                else:
                    await asyncio.sleep(0.2)

    def finish(self) -> dict[str, Any]:
        """What was seen, compared with what the endpoint counted; both processes end."""
        text = httpx.get(f"http://127.0.0.1:{self.ports[1]}/metrics").text
        answers = sum(map(int, re.findall(r"^mbrace_answers_total\{.*\} (\d+)$", text, re.MULTILINE)))
        counted = {
            int(status): int(count) for status, count in re.findall(r'completions",status="(\d+)"\} (\d+)', text)
        }
        opened = int(re.findall(r"^mbrace_open_requests (\d+)$", text, re.MULTILINE)[0])
        for process in (self.endpoint, self.process):
            process.terminate()
            process.wait(30)
        replies = sum(self.statuses.values())
        seen = {"upstream": self.name, "sent": self.sent, "200": self.statuses[200]}
        seen |= {"errors": replies - self.statuses[200], "lost": self.sent - replies, "wrong": len(self.wrong)}
        seen |= {"more answers": answers - self.statuses[200], "miscounted": int(counted != dict(self.statuses))}
        seen |= {"open": opened, "median s": round(statistics.median(self.seconds or [float("nan")]), 3)}
        return seen | {"MB": round(self.memories[-1]), "growth": round(self.memories[-1] / self.memories[0], 3)}


async def load(sides: list[Side], clients: int, seconds: float) -> None:
    """All clients at once, with an outage to warm up, and another one after it."""
    is_over = asyncio.Event()

    async def disturb(side: Side) -> None:
        for _ in range(2):
            await asyncio.sleep(seconds / 6)
            await side.outage()
            await asyncio.sleep(seconds / 6)
            await side.measure()

    tasks = [asyncio.create_task(sides[number % 2].client(number, is_over)) for number in range(clients)]
    await asyncio.gather(*map(disturb, sides), asyncio.sleep(seconds))
    is_over.set()
    await asyncio.gather(*tasks)


def main() -> int:
    """Run the soak; 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--record", metavar="FILE", help="add lines to this table")
    parser.add_argument("--echo", type=int, metavar="PORT", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.echo:
        QuietServer(("127.0.0.1", args.echo), Echo).serve_forever()
    sides = [
        Side("llama.cpp", ["-c", LLAMA, str(smollm2())], lambda text, question: bool(text)),
        Side("echo", [__file__, "--echo"], lambda text, question: text.startswith(question)),
    ]
    for side in sides:
        side.start()
    asyncio.run(load(sides, args.clients, args.seconds))
    good = True
    for side in sides:
        said = {"seconds": args.seconds, "clients": args.clients, **side.finish()}
        print(
            ", ".join(f"{name} {value}" for name, value in said.items()), dict(side.statuses), *side.wrong[:5], sep="\n"
        )
        faults = [said[name] for name in ("lost", "wrong", "more answers", "miscounted", "open")]
        good = good and said["200"] > 0 and not any(faults) and said["growth"] < GROWTH
        if args.record:
            path = Path(args.record)
            new = not path.exists()
            with path.open("a", encoding="utf-8") as file:
                file.write("\t".join(said) + "\n" if new else "")
                file.write("\t".join(map(str, said.values())) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    raise SystemExit(main())
