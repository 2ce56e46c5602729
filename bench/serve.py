"""What `mbrace serve` adds to the time of an answer, against a plain client with the same draws in the same steps.

    python bench/serve.py [--requests 200] [--delay 0.1]

The server behind both is a stand-in that takes `--delay` seconds for each request, so that the table shows our own time
and not that of a model. Each is a process of its own; runs alternate. Writes bench/results/serve.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mbrace.answers import steps_to

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from real_servers import free_port, wait_for

OUT = Path(__file__).parent / "results" / "serve.md"
WORDS = "the council voted on monday to build a new bridge over the river which will open in two years".split()  # noqa: SIM905
ROUNDS = 5
DRAWS = 16


def upstream(delay: float) -> Starlette:
    """A server whose answers are sentences of some 30 words, and all differ."""

    async def answer(request: Request) -> Response:
        body = await request.json()
        await asyncio.sleep(delay)
        chance = random.Random(body.get("seed"))
        texts = [" ".join(chance.choices(WORDS, k=30)) for _ in range(body.get("n", 1))]
        choices = [{"message": {"content": text}, "finish_reason": "stop"} for text in texts]
        return JSONResponse({"choices": choices, "usage": {"prompt_tokens": 9, "completion_tokens": 40 * len(texts)}})

    return Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])


def serve_upstream(port: int, delay: float) -> None:
    """Serve the stand-in until the process ends."""
    uvicorn.run(upstream(delay), port=port, log_level="error")


def start(port: int, *command: str) -> subprocess.Popen[bytes]:
    """A process that serves on a port of this machine, once it does."""
    process = subprocess.Popen([sys.executable, *command], stderr=subprocess.DEVNULL)
    wait_for(f"http://127.0.0.1:{port}", process)
    return process


async def timed(url: str, requests: int, clients: int, ask: Any) -> list[float]:
    """Seconds of each request."""
    numbers, seconds = iter(range(requests)), []
    async with httpx.AsyncClient(timeout=60) as http:

        async def one() -> None:
            for number in numbers:
                began = time.perf_counter()
                await ask(http, url, number)
                seconds.append(time.perf_counter() - began)

        await asyncio.gather(*(one() for _ in range(clients)))
    return seconds


def body_of(number: int, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": f"question {number}"}], **more}


async def plainly(http: httpx.AsyncClient, url: str, number: int) -> None:
    """The draws of a race that goes on to the end, without a race."""
    have = 0
    for size in steps_to(DRAWS):
        body = body_of(number, n=size - have, seed=number)
        response = await http.post(f"{url}/v1/chat/completions", json=body)
        json.loads(response.content)["choices"]
        have = size


async def served(http: httpx.AsyncClient, url: str, number: int) -> None:
    """The same draws by the endpoint: with regret 0 and texts that all differ, it makes all of them."""
    response = await http.post(f"{url}/v1/chat/completions", json=body_of(number, mbrace={"regret": 0.0}))
    assert response.json()["mbrace"]["requests"] >= 1, response.text


def main() -> None:
    """Measure both in turns, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--delay", type=float, default=0.1)
    parser.add_argument("--upstream", type=int, metavar="PORT", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.upstream:
        return serve_upstream(args.upstream, args.delay)
    ports = free_port(), free_port()
    behind, front = (f"http://127.0.0.1:{port}" for port in ports)
    model = ["--server", behind, "--server-model", "m", "--concurrency", "256"]
    processes = [
        start(ports[0], __file__, "--upstream", str(ports[0]), "--delay", str(args.delay)),
        start(ports[1], "-m", "mbrace", "serve", *model, "--port", str(ports[1]), "-n", str(DRAWS)),
    ]
    try:
        measure(behind, front, args.requests, args.delay)
    finally:
        for process in processes:
            process.terminate()
            process.wait(30)
    return None


def measure(behind: str, front: str, requests: int, delay: float) -> None:
    """Both in turns, and the table."""
    lines = ["| clients | plain, ms | serve, ms | more, ms | more |", "| ---: | ---: | ---: | ---: | ---: |"]
    for clients in (1, 8, 32):
        asyncio.run(timed(front, 2 * clients, clients, served))  # warm up
        plain, ours = [], []
        for _ in range(ROUNDS):
            plain += asyncio.run(timed(behind, requests // ROUNDS, clients, plainly))
            ours += asyncio.run(timed(front, requests // ROUNDS, clients, served))
        one, other = statistics.median(plain), statistics.median(ours)
        more = f"{1e3 * (other - one):.1f}"
        cells = (f"{clients}", f"{1e3 * one:.1f}", f"{1e3 * other:.1f}", more, f"{other / one - 1:.1%}")
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    about = (
        "# What `mbrace serve` adds\n\n"
        f"Median time of an answer by {DRAWS} draws in steps of 4, 8, 16, against a plain client that makes the same\n"
        f"draws in the same steps; the server behind both takes {delay:g} s per request; chrF++; {requests} requests,\n"
        "runs interleaved (`python bench/serve.py`).\n\n"
    )
    OUT.write_text(about + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
