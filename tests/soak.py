"""Runs that are disturbed at random, each compared with one that nothing disturbed (`make soak`).

    python tests/soak.py --minutes 10 [--cases 200] [--seed 0] [--ray 2] [--record bench/results/soak.tsv]

A case is one command in a folder of its own: `decode`, `rerank` with a tiny model, `export`, and `generate`,
`translate` and `answer` against a local server with faults, `decode --ray`, `serve` with a client, and `judge` with a
rater. It is interrupted (SIGINT), asked to end (SIGTERM), killed, its disk is full (RLIMIT_FSIZE), or what it has
written is cut; then the same command goes on with --resume, until it is left alone. At the end the output must have the
bytes of the undisturbed run. A line per case is added to the table, also for one that fails; the exit status is 1 if
anything was lost, doubled or changed.
"""

from __future__ import annotations

import argparse
import collections
import http.client
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from judge_server import Server as JudgeServer
from judge_server import post, write_study
from quiet_server import QuietHandler, begin_serving

RECORDS, SOURCES, RATINGS = 60, 24, 30
UTILITY = """
import time

def overlap(hypothesis, reference):
    if hypothesis == "poison":
        raise RuntimeError("refused")
    time.sleep(0.0004)
    ours, theirs = set(hypothesis.split()), set(reference.split())
    return len(ours & theirs) / max(1, len(ours | theirs))
"""
SIGNALS = {"INT": signal.SIGINT, "TERM": signal.SIGTERM, "KILL": signal.SIGKILL}
COLUMNS = ("case", "command", "output", "disturbances", "runs", "seconds", "lost", "doubled", "changed")


@dataclass
class Outcome:
    """What became of a case."""

    case: str
    command: str
    output: str
    disturbances: list[str] = field(default_factory=list)
    runs: int = 0
    seconds: float = 0.0
    lost: int = 0
    doubled: int = 0
    changed: int = 0

    def row(self) -> str:
        """Its line in the table."""
        values = {**vars(self), "disturbances": " ".join(self.disturbances), "seconds": f"{self.seconds:.1f}"}
        return "\t".join(str(values[name]) for name in COLUMNS)

    def compare(self, found: list[bytes], wanted: list[bytes]) -> None:
        """Count the lines that are missing, there too often, or in another place."""
        ours, theirs = collections.Counter(found), collections.Counter(wanted)
        self.lost += sum((theirs - ours).values())
        self.doubled += sum(count for line, count in (ours - theirs).items() if line in theirs)
        self.changed += sum(count for line, count in (ours - theirs).items() if line not in theirs)
        if not (self.lost or self.doubled or self.changed) and found != wanted:
            self.changed += 1


class FaultyServer:
    """An OpenAI-compatible server whose answers depend on the request alone; with `faults`, some fail first."""

    def __init__(self, seed: int) -> None:
        self.faults = False
        chance, server = random.Random(seed), self

        class Handler(QuietHandler):
            def answer(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                trouble = chance.choice(["500", "503", "cut", "garbled"]) if chance.random() < 0.04 else ""
                time.sleep(0.004)
                if not (trouble and server.faults):
                    asked = f"{body['messages'][-1]['content']} {body['seed']}"
                    words = [f"w{random.Random(f'{asked} {index}').randrange(9)} x" for index in range(body["n"])]
                    self.send(200, json.dumps({"choices": [{"message": {"content": word}} for word in words]}).encode())
                elif trouble == "cut":
                    self.send(200, b'{"choices": [', length=900)
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                elif trouble == "garbled":
                    self.send(200, b'{"choices": [{"mess')
                else:
                    self.send(int(trouble), b"{}")

        self.url = f"{begin_serving(Handler)[1]}/v1"


class Soak:
    """The inputs and the undisturbed runs, made once; then case after case."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed, self.server = folder, seed, FaultyServer(seed)
        self._references: dict[str, tuple[dict[str, bytes], float]] = {}
        chance = random.Random("input")
        rows = [
            json.dumps(
                {
                    "id": f"r{n}",
                    "source": "x",
                    "hypotheses": self._texts(chance),
                    "pseudo_references": self._texts(chance),
                }
            )
            for n in range(RECORDS)
        ]
        (folder / "known.jsonl").write_text("".join(row + "\n" for row in rows))
        rows[7], rows[30] = "{broken", rows[30].replace('["', '["poison", "')  # both are set aside
        (folder / "in.jsonl").write_text("".join(row + "\n" for row in rows))
        (folder / "sources.txt").write_text("".join(f"source number {n}\n" for n in range(SOURCES)))
        (folder / "slow.py").write_text(UTILITY)

    @staticmethod
    def _texts(chance: random.Random) -> list[str]:
        return [" ".join(chance.choices("abcdefgh", k=6)) for _ in range(6)]

    def command(self, kind: str, out: Path) -> list[str]:
        """The command of a case, that makes `out`."""
        start = [sys.executable, "-m", "mbrace", kind.split()[0]]
        text = ["--text"] if out.name.endswith(".txt") else []
        end = ["-o", str(out), "--window", "4", "--on-error", "skip"]
        if kind == "export":
            asked = [*["--format", "preference", "--prompt", "{source}", "--sources"], f"{self.folder}/known.jsonl"]
            return [*start, self.answers(), "-o", str(out), "--on-error", "skip", *asked]
        if kind == "rerank":
            return [*start, f"{self.folder}/in.jsonl", *end, "--qe", self.quality_model(), "--device", "cpu", *text]
        if kind.startswith("decode"):
            ray = ["--ray", "--ray-option", "workers=1", "--ray-option", "shard_size=8"] if "ray" in kind else []
            utility = ["--utility", f"{self.folder}/slow.py:overlap", "--schedule", "2,4,6"]
            return [*start, f"{self.folder}/in.jsonl", *end, *utility, *text, *ray]
        asked = ["--server", self.server.url, "--concurrency", "4"]
        if kind == "answer":
            return [*start, f"{self.folder}/sources.txt", *end, *asked, "--server-model", "m", "-n", "8"]
        asked += ["--model", "m", "--beam", "4", "--prompt", "{source}"]
        more = ["--sample", "8"] if kind == "generate" else ["--schedule", "4,8", *text]
        return [*start, f"{self.folder}/sources.txt", *end, *asked, *more]

    def answers(self) -> str:
        """Answers with n-best lists, made once."""
        path = self.folder / "answers.jsonl"
        if not path.exists():
            options = ["--prune", "none", "--nbest", "6", "--on-error", "skip"]
            command = [sys.executable, "-m", "mbrace", "decode", f"{self.folder}/in.jsonl", "-o", str(path), *options]
            subprocess.run(command, check=True, capture_output=True)
        return str(path)

    def quality_model(self) -> str:
        """A tiny checkpoint that estimates quality, made once."""
        path = self.folder / "kiwi-xlmr"
        if not path.exists():
            sys.path.insert(0, str(Path(__file__).parent / "oracle"))
            import tiny_cross  # needs torch

            tiny_cross.make(self.folder, path.name)
        return str(path)

    def reference(self, kind: str, name: str) -> tuple[dict[str, bytes], float]:
        """The files of an undisturbed run, and how long it took."""
        if f"{kind} {name}" not in self._references:
            folder = Path(tempfile.mkdtemp(dir=self.folder))
            began, self.server.faults = time.monotonic(), False
            subprocess.run(self.command(kind, folder / name), check=True, capture_output=True)
            self._references[f"{kind} {name}"] = contents(folder), time.monotonic() - began
        return self._references[f"{kind} {name}"]

    def run_case(self, number: int, kind: str, name: str) -> Outcome:
        """One case: disturbed some times, then left to finish."""
        chance = random.Random(f"{self.seed} {number}")
        outcome = Outcome(f"{self.seed}.{number}", kind, name)
        if kind in ("judge", "serve"):
            return (self._judge if kind == "judge" else self._serve)(chance, outcome)
        wanted, duration = self.reference(kind, name)
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        out, began = folder / name, time.monotonic()
        self.server.faults = kind in ("generate", "translate", "answer")
        command = [*self.command(kind, out), "--resume"]
        for _ in range(1 if "ray" in kind else chance.randint(1, 4)):
            how = chance.choice(["INT", "TERM", "KILL", "KILL", "disk", "cut"])
            outcome.disturbances.append(how)
            outcome.runs += 1
            self._disturb(command, how, chance, duration, max(map(len, wanted.values())))
            if how == "cut":
                for path in (out, Path(f"{out}.part")):
                    if path.is_file() and path.suffix != ".parquet":  # that is written in one step, at the end
                        os.truncate(path, chance.randint(0, path.stat().st_size))
        outcome.runs += 1
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = contents(folder)
        if done.returncode != 0:
            print(f"case {outcome.case}: {done.stderr.strip()}", file=sys.stderr)
            outcome.changed += 1
        for file in sorted(wanted.keys() | found.keys()):
            outcome.compare(found.get(file, b"").splitlines(True), wanted.get(file, b"").splitlines(True))
        outcome.seconds = time.monotonic() - began
        shutil.rmtree(folder)
        return outcome

    def _disturb(self, command: list[str], how: str, chance: random.Random, duration: float, size: int) -> None:
        """Run the command, not to its end in most cases."""
        limit = chance.randint(1, size)

        def full_disk() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        run = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=full_disk if how == "disk" else None,
        )
        try:
            run.wait(timeout=120 if how == "disk" else chance.uniform(0.1, 1.1 * duration))
        except subprocess.TimeoutExpired:
            run.send_signal(SIGNALS.get(how, signal.SIGKILL))
            run.wait(timeout=120)

    def _judge(self, chance: random.Random, outcome: Outcome) -> Outcome:
        """A rater answers while the server is killed; every answer that was acknowledged must be there once."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        arguments, began, port, position = write_study(folder, count=RATINGS), time.monotonic(), 0, 0
        given: list[tuple[int, str]] = []
        stops = sorted(chance.sample(range(1, RATINGS), 3))
        while position < RATINGS:
            outcome.runs += 1
            until = stops.pop(0) if stops else RATINGS
            with JudgeServer(arguments, port=port) as server:
                port = server.port
                how = chance.choice(["KILL", "TERM", "INT"]) if until < RATINGS else ""
                late = threading.Timer(chance.uniform(0, 0.05), server.process.send_signal, [SIGNALS.get(how, 0)])
                while position < until:
                    position = self._rate(server.links[0], position, given)
                if how:
                    outcome.disturbances.append(how)
                    late.start()  # while the next answer is on its way
                    position = self._rate(server.links[0], position, given)
                    late.join()
                    server.process.wait(timeout=20)
        with sqlite3.connect(folder / "ratings.db") as sql:
            rows = list(sql.execute("SELECT position, count(*) FROM rating GROUP BY position"))
            events = sql.execute("SELECT count(*) FROM event").fetchone()[0]
        saved = dict(rows)
        outcome.lost = sum(place not in saved for place, _ in given)
        outcome.doubled = sum(count > 1 for count in saved.values()) + max(0, events - RATINGS)
        outcome.changed = sum(place not in dict(given) for place in saved)
        outcome.seconds = time.monotonic() - began
        shutil.rmtree(folder)
        return outcome

    def _serve(self, chance: random.Random, outcome: Outcome) -> Outcome:
        """Clients ask while the endpoint is ended and started again; what is answered in full is always the same."""
        began, self.server.faults, position = time.monotonic(), True, 0
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        asked = ["--server", self.server.url, "--server-model", "m", "-n", "4", "--port", str(port)]
        command = [sys.executable, "-m", "mbrace", "serve", *asked]
        found: dict[int, set[str]] = collections.defaultdict(set)
        for how in [*chance.choices(["KILL", "TERM", "INT"], k=3), ""]:
            outcome.runs += 1
            endpoint = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if how:
                outcome.disturbances.append(how)
                threading.Timer(chance.uniform(0.3, 1.5), endpoint.send_signal, [SIGNALS[how]]).start()
            try:
                while endpoint.poll() is None and (how or position < 2 * SOURCES):
                    text = ask_endpoint(port, f"question {position % SOURCES}")
                    if text is None:
                        time.sleep(0.05)  # it is starting, or ending
                    else:
                        found[position % SOURCES].add(text)
                        position += 1
            finally:
                endpoint.terminate()
            outcome.changed += endpoint.wait(timeout=60) not in (0, 130, 143, -2, -9, -15)
        outcome.lost = SOURCES - len(found)
        outcome.changed += sum(len(texts) - 1 for texts in found.values())
        outcome.seconds = time.monotonic() - began
        return outcome

    @staticmethod
    def _rate(link: str, position: int, given: list[tuple[int, str]]) -> int:
        """Answer once; the next position if it was acknowledged, else the same, to be sent again as the page does."""
        try:
            status = post(link, "rate", position=position, choice="tie", request=f"request-{position}")
        except (OSError, http.client.HTTPException):
            return position
        if status != 303:
            return position
        given.append((position, "tie"))
        return position + 1


def ask_endpoint(port: int, prompt: str) -> str | None:
    """The answer of `mbrace serve`; None if there is none, as the endpoint has ended or says so."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": prompt}], "seed": 5})
    try:
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        data = response.read()
        return str(json.loads(data)["choices"][0]["message"]["content"]) if response.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def contents(folder: Path) -> dict[str, bytes]:
    """All files under a folder, by name; the inputs' folder is the same for all cases. What `answer` says of its time
    is left out."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: re.sub(rb',"seconds":[0-9.e-]+(?=}\n)', b"", data) for name, data in files.items()}


def kinds(chance: random.Random, ray: int) -> Any:
    """The kinds of cases, as they come: `ray` of them on a cluster, which takes long to start."""
    for _ in range(ray):
        yield "decode --ray", "out"
    while True:
        kind = chance.choices(
            ["decode", "generate", "translate", "answer", "export", "rerank", "serve", "judge"],
            [5, 2, 2, 2, 1, 1, 1, 1],
        )[0]
        names = {
            "rerank": ["o.jsonl", "o.txt"],
            "decode": ["o.jsonl", "o.jsonl.gz", "o.jsonl.zst", "o.txt", "o.parquet"],
            "judge": ["ratings.db"],
            "answer": ["o.jsonl"],
            "serve": ["-"],
        }
        yield kind, chance.choice(names.get(kind, ["o.jsonl", "o.jsonl.xz"]))


def main() -> int:
    """Run cases until the time is over or all are done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ray", type=int, default=0, metavar="N", help="cases on a cluster (half a minute each)")
    parser.add_argument("--record", metavar="FILE", help="add a line per case to this table")
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a job in the background, and by its commands
    end, bad, done = time.monotonic() + 60 * args.minutes, 0, 0
    if args.record and not Path(args.record).exists():
        Path(args.record).write_text("\t".join(COLUMNS) + "\n")
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder), args.seed)
        for number, (kind, name) in enumerate(kinds(random.Random(f"kinds {args.seed}"), args.ray)):
            if number == args.cases or time.monotonic() > end:
                break
            outcome = soak.run_case(number, kind, name)
            done, bad = done + 1, bad + bool(outcome.lost or outcome.doubled or outcome.changed)
            print(outcome.row(), flush=True)
            if args.record:
                with open(args.record, "a", encoding="utf-8") as table:
                    table.write(outcome.row() + "\n")
    print(f"{done} cases, {bad} with anything lost, doubled or changed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
