"""Three hosts on one machine, and what becomes of a run with --ray when a host, a link, a disk or the driver fails.

    make hosts        # python bench/hosts.py: writes bench/results/hosts.md and hosts.json, in about ten minutes

A host is a network namespace with an address of its own on a bridge (veth), a process namespace, a private folder, a
private /dev/shm and a Ray node; there is no route to anywhere else. All is inside namespaces of this script, so that
the kernel removes it when the script ends, however it ends. Where namespaces are not allowed, it says so and ends with
status 0. Every run is compared with one on one machine, byte for byte.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import heapq
import json
import lzma
import multiprocessing
import os
import platform
import random
import secrets
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scale import write_corpus

import mbrace

RESULTS = Path(__file__).parent / "results"
NEWS = Path(mbrace.__file__).parent / "data" / "newstest.jsonl.xz"
MBRACE = [sys.executable, "-m", "mbrace"]
HEAD = "10.77.0.1:6379"
HYPOTHESES, REFERENCES, SHARD = 32, 64, 256
SOURCES = {"decode": "in.jsonl", "translate": "in.txt", "start": "start.jsonl"}
EXPECTED = {"decode": "decode.jsonl", "translate": "translate.txt", "start": "started.jsonl"}
DELAY, LOSS = 0.05, 0.01  # of the slow link, in each direction
ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",  # nobody else joins, and what a careful user has is what is measured
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # a host that does not answer is lost after about five seconds, not after the minute of Ray's defaults
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}


@dataclass
class Row:
    """A line of the table."""

    name: str
    hosts: int
    records: int
    seconds: float = 0.0
    cpu: dict[str, float] = field(default_factory=dict)  # processor seconds by host, the driver's own under "driver"
    traffic: dict[str, int] = field(default_factory=dict)  # bytes to and from each host
    driver: float = 0.0  # what the driver's process spends per record, once it has begun
    same: bool = False
    note: str = ""


def sh(*command: object) -> str:
    """Run a program; its output."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


class Host:
    """A host, from `start` to `kill`."""

    def __init__(self, number: int, folder: Path) -> None:
        self.name, self.number, self.folder = f"host{number}", number, folder
        self.address = f"10.77.0.{number}"
        self.link = f"veth{number}"  # its end at the bridge
        self.is_broken = False  # to be made again before the next run
        self._init: subprocess.Popen[str] | None = None
        self._relay: Any = None
        self._pid = self._traffic = 0
        self._spent: dict[int, float] = {}  # processor seconds by process, also of those that have ended

    def start(self) -> None:
        """Make its namespaces, link and folders."""
        self.link, self.is_broken = f"veth{self.number}", False
        sh("ip", "netns", "add", self.name)
        sh("ip", "link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        self._attach(self.link)
        private = self.folder / "own"
        script = (
            f"mount -t tmpfs -o size={'1g' if self.number == 1 else '128m'} tmpfs {private} && "
            f"mount -t tmpfs -o size=1g tmpfs /dev/shm && "
            f"mkdir {private}/small && mount -t tmpfs -o size=64m tmpfs {private}/small && "
            f"hostname {self.name} && echo ready && exec sleep infinity"
        )
        namespaces = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command = ["ip", "netns", "exec", self.name, *namespaces, "sh", "-c", script]
        self._init = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._init.stdout is not None
        if self._init.stdout.readline().strip() != "ready":
            raise SystemExit(f"{self.name}: cannot be made")
        self._pid = children(self._init.pid)[0]

    def _attach(self, link: str) -> None:
        sh("ip", "link", "set", link, "master", "bridge", "up")
        for device in ("lo", "eth0"):
            sh("ip", "-n", self.name, "link", "set", device, "up")
        sh("ip", "-n", self.name, "address", "add", f"{self.address}/24", "dev", "eth0")

    def start_ray(self) -> None:
        """Start its Ray node; the first host has the head."""
        where = ["--head", "--port=6379", "--include-dashboard=false"] if self.number == 1 else [f"--address={HEAD}"]
        if self.number == 1:
            where.append(f"--temp-dir={self.folder / 'own' / 'ray'}")
        ray = [sys.executable, "-c", "import ray.scripts.scripts as s; s.main()", "start", *where]
        ray += [f"--node-ip-address={self.address}", "--num-cpus=1", "--object-store-memory=200000000"]
        done = self.popen([*ray, "--disable-usage-stats"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        output = done.communicate(timeout=120)[0]
        if done.returncode:
            raise SystemExit(f"{self.name}: Ray does not start: {output}")

    def popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program on the host."""
        enter = ["nsenter", "-t", str(self._pid), "--net", "--mount", "--uts", "--pid"]
        environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(Path(mbrace.__file__).parent.parent)}
        return subprocess.Popen([*enter, *command], env=environment, **options)

    def run(self, *command: object) -> None:
        """Run a program on the host to its end."""
        process = self.popen([str(word) for word in command], stderr=subprocess.PIPE, text=True)
        error = process.communicate(timeout=120)[1]
        if process.returncode:
            raise SystemExit(f"{self.name}: {error.strip()}")

    @property
    def own(self) -> Path:
        """Its private folder, as this script sees it."""
        return Path(f"/proc/{self._pid}/root{self.folder}/own")

    def slow_down(self) -> str:
        """Make its link slow; says by what."""
        done = subprocess.run(
            ["tc", "qdisc", "add", "dev", self.link, "root", "netem", "delay", f"{DELAY}s", "loss", f"{LOSS:%}"],
            capture_output=True,
            check=False,
        )
        if done.returncode == 0:
            command = ["tc", "qdisc", "add", "dev", "eth0", "root", "netem", "delay", f"{DELAY}s", "loss", f"{LOSS:%}"]
            self.run(*command)
            return "netem"
        mac = json.loads(sh("ip", "-n", self.name, "-json", "link", "show", "eth0"))[0]["address"]
        ends = Tap(f"tap{self.number}a"), Tap(f"tap{self.number}b")  # the host's new eth0, and its end at the bridge
        sh("ip", "link", "del", self.link)
        sh("ip", "link", "set", ends[0].name, "netns", self.name)
        sh("ip", "-n", self.name, "link", "set", ends[0].name, "name", "eth0", "address", mac)
        self.link = ends[1].name
        self._relay = multiprocessing.get_context("fork").Process(target=relay, args=ends, daemon=True)
        self._relay.start()
        for end in ends:
            os.close(end.descriptor)
        self._attach(self.link)
        return "a relay process (this kernel has no netem)"

    def sample(self) -> None:
        """Note what its processes have spent so far."""
        with contextlib.suppress(OSError):
            space = os.readlink(f"/proc/{self._pid}/ns/pid")
            for entry in filter(str.isdigit, os.listdir("/proc")):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{entry}/ns/pid") == space:
                        self._spent[int(entry)] = processor_seconds(int(entry))

    @property
    def spent(self) -> float:
        """Processor seconds of all its processes."""
        self.sample()
        return sum(self._spent.values())

    @property
    def traffic(self) -> int:
        """Bytes that went over its link, to it and from it."""
        command = ["ip", "-statistics", "-json", "link", "show", self.link]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode == 0:
            counts = json.loads(done.stdout)[0]["stats64"]
            self._traffic = counts["rx"]["bytes"] + counts["tx"]["bytes"]
        return self._traffic  # of a link that is gone, what was seen last

    def kill(self) -> None:
        """End all its processes at once, as when the power fails, and remove its link."""
        if self._init is None:
            return
        self._traffic = self.traffic
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._init.wait()
        if self._relay is not None:
            self._relay.kill()
            self._relay.join()
        subprocess.run(["ip", "link", "del", self.link], capture_output=True, check=False)
        sh("ip", "netns", "del", self.name)
        self._init = None


def children(process: int) -> list[int]:
    """The processes that a process has started."""
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def processor_seconds(process: int) -> float:
    """What a process has spent so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Tap:
    """A network device whose frames are read and written by a process."""

    def __init__(self, name: str) -> None:
        self.name, self.descriptor = name, os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(
            self.descriptor, 0x400454CA, struct.pack("16sH22x", name.encode(), 0x1002)
        )  # TUNSETIFF: tap, no header


def relay(one: Tap, other: Tap) -> None:
    """Carry frames between two devices: each late by `DELAY`, and some not at all."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with this script
    chance, waiting, count = random.Random(0), [], 0  # type: ignore[var-annotated]
    targets = {one.descriptor: other.descriptor, other.descriptor: one.descriptor}
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 1.0
        for source in select.select(list(targets), [], [], pause)[0]:
            frame = os.read(source, 65536)
            if chance.random() >= LOSS:
                count += 1
                heapq.heappush(waiting, (time.monotonic() + DELAY, count, targets[source], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, target, frame = heapq.heappop(waiting)
            with contextlib.suppress(OSError):
                os.write(target, frame)


class Bench:
    """The hosts, the inputs, and the rows measured so far."""

    def __init__(self, folder: Path, records: int, sources: int, only: str) -> None:
        self.folder, self.only, self.rows, self.slow = folder, only, list[Row](), ""
        self.counts = {"decode": records, "translate": sources, "start": 3 * SHARD}
        self.hosts = [Host(number, folder) for number in (1, 2, 3)]
        self.up = 0  # how many hosts run
        (folder / "own").mkdir()
        (folder / "shared").mkdir()
        write_corpus(folder / "shared" / "in.jsonl", records, HYPOTHESES, REFERENCES)
        write_corpus(folder / "shared" / "start.jsonl", 3 * SHARD, HYPOTHESES, REFERENCES)
        write_sources(folder / "shared" / "in.txt", sources)

    def start_hosts(self, count: int) -> None:
        """Have `count` hosts run, as they were at the beginning."""
        for host in self.hosts[:count]:
            if host.is_broken:
                host.kill()
                host.start()
                host.start_ray()
        for host in self.hosts[self.up : count]:
            host.start()
            host.start_ray()
            if host.number == 1:  # what only the driver's host has
                given = [self.folder / "shared" / name for name in SOURCES.values()]
                host.run("cp", *given, self.folder / "own")
        self.up = max(self.up, count)

    def command(self, kind: str, source: Path) -> list[str]:
        """A command without its output."""
        if kind != "translate":
            return [*MBRACE, "decode", str(source / SOURCES[kind]), "--threads", "1"]
        model = ["--beam", "4", "--schedule", "4,8,16", "--device", "cpu", "--threads", "1"]
        return [*MBRACE, "translate", str(source / SOURCES[kind]), *model]

    def plain(self, kind: str) -> None:
        """One machine without Ray: the answers that all others must equal."""
        if self.only and kind != "decode":
            return
        row = Row(f"{kind}: one machine, without Ray", 0, self.counts[kind])
        out, began = self.folder / EXPECTED[kind], time.monotonic()
        process = subprocess.Popen(
            [*self.command(kind, self.folder / "shared"), "-o", str(out)], stderr=subprocess.PIPE
        )
        assert process.stderr is not None
        message = process.stderr.read().decode()
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{row.name}: {message}")
        row.cpu, row.seconds, row.same = {"driver": usage.ru_utime + usage.ru_stime}, time.monotonic() - began, True
        self._add(row)

    def spread(
        self,
        kind: str,
        name: str,
        hosts: int = 3,
        *,
        shared: bool = False,
        out: str = "out",
        prepare: Callable[[], None] = lambda: None,
        disturb: Callable[[Path, subprocess.Popen[Any]], str] | None = None,
        resumes: Callable[[], str] | None = None,
    ) -> None:
        """A run with --ray. `prepare` is called before it; `disturb` while it goes on, and says what it did; with
        `resumes` the run is expected to fail, and is resumed once that has been called."""
        if self.only and (self.only not in name or kind != "decode"):
            return
        self.start_hosts(hosts)
        prepare()
        row = Row(f"{kind}: {name}", hosts, self.counts[kind])
        first, source = self.hosts[0], self.folder / ("shared" if shared else "own")
        target = self.folder / "own" / out
        view = first.own / out
        first.run("rm", "-rf", target, f"{target}.errors.jsonl")
        ray = ["--ray", HEAD, "--ray-option", f"workers={hosts}"]
        if kind != "translate":
            ray += ["--ray-option", f"shard_size={SHARD}"]
        command = [*self.command(kind, source), *ray, "-o", str(target)]
        used = self.hosts[:hosts]
        before = {host.name: (host.spent, host.traffic) for host in used}
        began, over = time.monotonic(), threading.Event()

        running: list[subprocess.Popen[Any]] = []
        seen: list[tuple[int, float]] = []  # (shards, what the driver has spent), as the run goes on

        def watch() -> None:
            while not over.wait(0.25):
                for host in used:
                    host.sample()
                with contextlib.suppress(OSError, IndexError):
                    seen.append((shards(view), processor_seconds(children(running[-1].pid)[0])))

        watcher = threading.Thread(target=watch)
        watcher.start()
        notes, usages = [], []
        try:
            for attempt in range(2 if resumes else 1):
                resume = ["--resume"] if attempt else []
                process = first.popen([*command, *resume], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
                running.append(process)
                if disturb is not None and attempt == 0:
                    wait_for(lambda: shards(view) >= 3 or has_ended(running[-1]))
                    notes.append(disturb(view, process))
                assert process.stderr is not None
                message = process.stderr.read().decode(errors="replace").strip()
                _, status, usage = os.wait4(process.pid, 0)
                usages.append(usage.ru_utime + usage.ru_stime)
                if resumes and attempt == 0:
                    if status == 0:
                        raise SystemExit(f"{row.name}: was expected to fail")
                    notes.append(resumes())
                elif status:
                    raise SystemExit(f"{row.name}: {message}")
        finally:
            over.set()
            watcher.join()
        row.seconds = time.monotonic() - began
        row.cpu = {host.name: host.spent - before[host.name][0] for host in used} | {"driver": sum(usages)}
        row.traffic = {host.name: host.traffic - before[host.name][1] for host in used}
        at_work = [(count, seconds) for count, seconds in seen if count]
        if len(at_work) > 1 and at_work[-1][0] > at_work[0][0] and kind == "decode":
            (count, seconds), (more, in_all) = at_work[0], at_work[-1]
            row.driver = (in_all - seconds) / (more - count) / SHARD
        manifest = json.loads((view / "manifest.json").read_bytes())
        found = b"".join((view / shard["file"]).read_bytes() for shard in manifest["shards"])
        row.same = found == (self.folder / EXPECTED[kind]).read_bytes() and manifest["complete"]
        row.note = "; ".join(filter(None, notes))
        self._add(row)

    def _add(self, row: Row) -> None:
        print(f"{row.name}: {row.seconds:.1f} s, same bytes: {row.same} {row.note}", file=sys.stderr, flush=True)
        self.rows.append(row)

    def run(self) -> None:
        """All runs."""
        for kind in SOURCES:
            self.plain(kind)
        for hosts in (1, 2, 3):
            self.spread("start", f"{hosts} host{'s' * (hosts > 1)}", hosts)
            self.spread("decode", f"{hosts} host{'s' * (hosts > 1)}", hosts)
        self.spread("translate", "3 hosts")
        self.spread("decode", "3 hosts, input in a shared folder", shared=True)
        for kind in ("decode", "translate"):
            self.spread(kind, "the driver is killed, then resumed", disturb=self.kill_driver, resumes=lambda: "")
        self.spread(
            "decode",
            "the driver's disk is full, then has room",
            out="small/out",
            prepare=lambda: self.hosts[0].run("dd", "if=/dev/zero", f"of={self.filler}", "bs=64k", "count=1020"),
            resumes=self.make_room,
        )
        self.spread("decode", "another host's disk is full", disturb=self.fill_disk)
        self.spread("decode", "the link of host 3 is slow", prepare=self.slow_down)
        self.spread("decode", "the link of host 3 is cut", disturb=self.cut_link)
        for kind in ("decode", "translate"):
            self.spread(kind, "host 2 is killed", disturb=self.kill_host)

    @property
    def filler(self) -> Path:
        """A file that leaves no room on a small disk of the driver's host."""
        return self.folder / "own" / "small" / "filler"

    def make_room(self) -> str:
        """Make room on that disk."""
        self.hosts[0].run("rm", self.filler)
        return "the run stopped, room was made, and it was resumed"

    def kill_driver(self, out: Path, process: subprocess.Popen[Any]) -> str:
        """End the driver's process."""
        os.kill(children(process.pid)[0], signal.SIGKILL)
        return f"killed after {shards(out)} shards"

    def fill_disk(self, out: Path, process: subprocess.Popen[Any]) -> str:
        """Leave no room on host 2."""
        self.hosts[1].is_broken = True
        with contextlib.suppress(OSError), open(self.hosts[1].own / "filler", "wb") as file:
            for _ in range(4096):
                file.write(bytes(1 << 20))
        return "not a byte is left in the folder of Ray's logs and spilled objects"

    def slow_down(self) -> None:
        """Make the link of host 3 slow."""
        self.hosts[2].is_broken = True
        self.slow = self.hosts[2].slow_down()

    def cut_link(self, out: Path, process: subprocess.Popen[Any]) -> str:
        """Cut the link of host 3."""
        self.hosts[2].is_broken = True
        sh("ip", "link", "set", self.hosts[2].link, "down")
        return f"cut after {shards(out)} shards, for good"

    def kill_host(self, out: Path, process: subprocess.Popen[Any]) -> str:
        """End all processes of host 2."""
        self.hosts[1].is_broken = True
        self.hosts[1].kill()
        return f"killed after {shards(out)} shards"


def shards(out: Path) -> int:
    """How many shards are finished."""
    return len(list(out.glob("part-*")))


def has_ended(process: subprocess.Popen[Any]) -> bool:
    """Whether a process has ended; it can still be waited for."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SystemExit("nothing happened for two minutes")
        time.sleep(0.05)


def write_sources(path: Path, count: int) -> None:
    """Write so many different sentences, made of the bundled test set's."""
    with lzma.open(NEWS, "rt", encoding="utf-8") as file:
        texts = [json.loads(line)["source"] for line in file]
    lines = (f"{texts[number % len(texts)]}{' !' * (number // len(texts))}\n" for number in range(count))
    path.write_text("".join(lines), encoding="utf-8")


def spent(row: Row) -> float:
    """Processor seconds of a run: of all processes of all hosts, or of the one process of a run without Ray."""
    return sum(seconds for name, seconds in row.cpu.items() if name != "driver") if row.hosts else row.cpu["driver"]


def page(rows: Sequence[Row], slow: str, seconds: float) -> str:
    """hosts.md."""
    plain = {row.name.partition(":")[0]: row for row in rows if row.hosts == 0}
    decoded, translated, started = (f"{plain[kind].records:,}" for kind in SOURCES)
    text = f"""# Several hosts

Written by `make hosts` in {seconds / 60:.0f} minutes on {platform.machine()}, {os.cpu_count()} cores that all hosts
share: count processor seconds and bytes, elapsed times say little. Hosts are network namespaces on a bridge, each with
an address, processes, a private folder and a Ray node of one CPU. The driver and Ray's head are on host 1, which alone
has the input unless the table says otherwise. A slow link is {DELAY * 1000:.0f} ms late in each direction and loses
{LOSS:.0%} of all frames, by {slow}. Ray takes a host for lost after about five seconds
here (its default: about a minute).

- `decode`: chrF++, {decoded} records of {HYPOTHESES} hypotheses and {REFERENCES} pseudo-references, shards of {SHARD};
- `translate`: the bundled model with `--beam 4 --schedule 4,8,16`, {translated} sources, shards of 64;
- `start`: `decode` of {started} records, which shows what starting and ending a run costs.

| run | seconds | processor seconds | efficiency | MB over the network | kB per record | same bytes | |
|---|---:|---:|---:|---:|---:|---|---|
"""
    for row in rows:
        kind, sent = row.name.partition(":")[0], sum(row.traffic.values()) / 2  # each byte left one host for another
        text += (
            f"| {row.name} | {row.seconds:.0f} | {spent(row):.1f} | {spent(plain[kind]) / spent(row):.0%} "
            f"| {sent / 1e6:.1f} | {sent / 1e3 / row.records:.1f} | {'yes' if row.same else '**NO**'} | {row.note} |\n"
        )
    gained = ", ".join(f"{efficiency(rows, hosts):.0%}" for hosts in (1, 2, 3))
    text += f"""
Same bytes: those of the run on one machine, so nothing is lost, doubled or changed. Efficiency: the processor seconds
of one machine without Ray over those of all processes of all hosts, Ray's own included; without what starting and
ending costs, on 1, 2 and 3 hosts: {gained}. While it runs, the driver's process takes
{driver_seconds(rows) * 1e6:,.0f} microseconds per record.
"""
    return text


def efficiency(rows: Sequence[Row], hosts: int) -> float:
    """The efficiency of decoding once it has begun: without the processor seconds of starting and ending."""
    count = f"{hosts} host{'s' * (hosts > 1)}"
    found = {row.name: spent(row) for row in rows}
    one = found["decode: one machine, without Ray"] - found["start: one machine, without Ray"]
    return one / (found[f"decode: {count}"] - found[f"start: {count}"])


def driver_seconds(rows: Sequence[Row]) -> float:
    """What the driver spends per record, in the undisturbed runs."""
    found = [row.driver for row in rows if row.driver and not row.note]
    return sum(found) / max(1, len(found))


def reason_against() -> str:
    """Why hosts cannot be made here; "" if they can."""
    if sys.platform != "linux":
        return "they are Linux namespaces"
    missing = [name for name in ("unshare", "nsenter", "ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)}: not installed (Debian: util-linux, iproute2)"
    try:
        import ray  # noqa: F401
    except ImportError:
        return "Ray is not installed: pip install '.[cluster]'"
    check = subprocess.run(
        [*NAMESPACES, "ip", "link", "add", "type", "veth"], capture_output=True, text=True, check=False
    )
    return "" if check.returncode == 0 else f"namespaces are not allowed: {check.stderr.strip()}"


NAMESPACES = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
if os.name == "posix" and os.geteuid():
    NAMESPACES += ["--user", "--map-root-user"]


def main() -> int:
    """Enter namespaces of its own, run everything, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--sources", type=int, default=500)
    parser.add_argument("--out", default=str(RESULTS), help="folder of the table (- prints it)")
    parser.add_argument("--only", default="", metavar="WORDS", help="only decode, and runs that have these words")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.inside:
        reason = reason_against()
        if reason:
            print(f"hosts: skipped: {reason}", file=sys.stderr)
            return 0
        return subprocess.call([*NAMESPACES, sys.executable, *sys.argv, "--inside"])
    began = time.monotonic()
    sh("mount", "--make-rprivate", "/")
    sh("mount", "-t", "tmpfs", "tmpfs", "/run")  # for the names of namespaces
    sh("ip", "link", "set", "lo", "up")
    sh("ip", "link", "add", "bridge", "type", "bridge")
    sh("ip", "link", "set", "bridge", "up")
    folder = Path(tempfile.mkdtemp(prefix="mbh-"))
    try:
        bench = Bench(folder, args.records, args.sources, args.only)
        bench.run()
    finally:
        for host in bench.hosts:
            host.kill()
        shutil.rmtree(folder)
    data = json.dumps([asdict(row) for row in bench.rows], indent=1) + "\n"
    if args.out == "-":
        print(data)
    else:
        Path(args.out, "hosts.json").write_text(data)
        Path(args.out, "hosts.md").write_text(page(bench.rows, bench.slow, time.monotonic() - began))
    return 0 if all(row.same for row in bench.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
