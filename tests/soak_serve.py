"""`mbrace serve` under load (`make soak`): 64 clients for two minutes against llama.cpp, which is killed and restarted.

    python tests/soak_serve.py [--seconds 120] [--clients 64] [--record bench/results/soak_serve.tsv]

Every request must get its own answer or a clear error, none twice, and the memory of the endpoint must stay flat.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from real_servers import LLAMA, free_port, smollm2, wait_for

DRAWS, TOKENS = 4, 16
CLEAR = {422, 429, 502, 503, 504}  # none whole; too many; upstream is not there, or not yet
GROWTH = 1.15  # of the memory after warming up


def start_upstream(port: int) -> subprocess.Popen[bytes]:
    """llama.cpp with SmolLM2."""
    command = [sys.executable, "-c", LLAMA, str(smollm2()), str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(f"http://127.0.0.1:{port}", process)
    return process


def start_endpoint(upstream: int, port: int) -> subprocess.Popen[bytes]:
    """`mbrace serve` in front of it."""
    options = ["--server", f"http://127.0.0.1:{upstream}", "--server-model", "smollm2", "--temperature", "0.5"]
    options += ["-n", str(DRAWS), "--port", str(port), "--timeout", "60"]
    command = [sys.executable, "-m", "mbrace", "serve", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(f"http://127.0.0.1:{port}", process)
    return process


def memory_of(process: subprocess.Popen[bytes]) -> int:
    """Resident memory, in bytes."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


async def client(url: str, number: int, until: float, statuses: Counter[int], ids: Counter[str], seconds: list[float],
                 wrong: list[str]) -> None:  # fmt: skip
    """One client: a question, its answer, the next question."""
    async with httpx.AsyncClient(timeout=180) as http:
        count = 0
        while time.monotonic() < until:
            count += 1
            question = f"What is {number} + {count}? Answer with the number only."
            body = {"messages": [{"role": "user", "content": question}], "max_tokens": TOKENS}
            began = time.monotonic()
            try:
                response = await http.post(url, json=body)
            except httpx.HTTPError as error:
                wrong.append(f"{type(error).__name__}: {error}")
                continue
            statuses[response.status_code] += 1
            found: dict[str, Any] = response.json()
            if response.status_code == 200:
                seconds.append(time.monotonic() - began)
                ids[found["id"]] += 1
                if not found["choices"][0]["message"]["content"] or found["mbrace"]["draws"] > DRAWS:
                    wrong.append(f"answer {found}")
            elif response.status_code not in CLEAR or not found["error"]["message"]:
                wrong.append(f"status {response.status_code}: {found}")
            else:
                await asyncio.sleep(0.2)


async def load(
    url: str, clients: int, seconds: float, disturb: Any
) -> tuple[Counter[int], Counter[str], list[float], list[str]]:
    """All clients at once, while `disturb` runs beside them."""
    statuses: Counter[int] = Counter()
    ids: Counter[str] = Counter()
    times: list[float] = []
    wrong: list[str] = []
    until = time.monotonic() + seconds
    tasks = [client(url, number, until, statuses, ids, times, wrong) for number in range(clients)]
    await asyncio.gather(disturb(until), *tasks)
    return statuses, ids, times, wrong


def main() -> int:
    """Run the soak; 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--record", metavar="FILE", help="add a line to this table")
    args = parser.parse_args()
    upstream_port, port = free_port(), free_port()
    upstream = start_upstream(upstream_port)
    endpoint = start_endpoint(upstream_port, port)
    memories: list[int] = []

    async def disturb(until: float) -> None:
        nonlocal upstream
        third = (until - time.monotonic()) / 3
        await asyncio.sleep(third)
        memories.append(memory_of(endpoint))
        upstream.send_signal(signal.SIGKILL)
        upstream.wait()
        await asyncio.sleep(3)
        upstream = await asyncio.to_thread(start_upstream, upstream_port)
        while time.monotonic() < until - 1:
            await asyncio.sleep(0.5)
        memories.append(memory_of(endpoint))

    try:
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        statuses, ids, times, wrong = asyncio.run(load(url, args.clients, args.seconds, disturb))
        health = httpx.get(f"http://127.0.0.1:{port}/health").json()
    finally:
        for process in (endpoint, upstream):
            process.terminate()
            process.wait(30)
    doubled = sum(count - 1 for count in ids.values())
    growth = memories[-1] / memories[0]
    median = statistics.median(times) if times else float("nan")
    said = {"200": statuses[200], "errors": sum(statuses.values()) - statuses[200], "wrong": len(wrong)}
    said |= {"doubled": doubled, "open": health["open_requests"], "median s": round(median, 3)}
    said |= {"MB": round(memories[-1] / 2**20), "growth": round(growth, 3)}
    print(", ".join(f"{name} {value}" for name, value in said.items()), dict(statuses), *wrong[:5], sep="\n")
    if args.record:
        path = Path(args.record)
        new = not path.exists()
        with path.open("a", encoding="utf-8") as file:
            if new:
                file.write("\t".join(["seconds", "clients", *said]) + "\n")
            file.write("\t".join(map(str, [args.seconds, args.clients, *said.values()])) + "\n")
    good = statuses[200] > 0 and not wrong and not doubled and not health["open_requests"] and growth < GROWTH
    return 0 if good else 1


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    raise SystemExit(main())
