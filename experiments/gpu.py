"""Train the experiments' models side by side on one GPU, then generate their candidates (run by experiments/gpu.sh).

Each model is a process of its own (`mbrace train`, then `experiments/gpu_generate.py`), so that one that fails does
not stop the others, and so that small kernels of several models fill the GPU. Smaller training sets get less time,
which leaves the GPU to the large one at the end. Results go to out/results, written whole or not at all.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from pathlib import Path

OUT = Path("out")
SHIPPABLE = ["europarl", "tatoeba-anki", "msdocs", "mlqe-wikipedia"]
RATE = ["--rate", "5e-4"]  # with 1,000 steps of warm-up: post-norm layers diverge at higher rates
# name: pair, size, minutes of training as a share of --minutes, dropout, further options
MODELS: dict[str, tuple[str, str, float, float, list[str]]] = {
    "preflight": ("en-et", "tiny", 1.0, 0.1, []),  # small and done in a minute: shows what fails before it matters
    "de-en": ("de-en", "base", 1.0, 0.1, RATE),
    "tr-en": ("tr-en", "base", 0.65, 0.2, RATE),
    "en-et": ("en-et", "base", 0.5, 0.3, RATE),
    "bundled": ("de-en", "small", 0.8, 0.05, ["--origins", *SHIPPABLE]),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=11.0, help="of training, the longest")
    parser.add_argument("--deadline", type=float, default=17.5, help="minutes after the start when all must be written")
    parser.add_argument("--sentences", type=int, default=200, help="a set with candidates")
    parser.add_argument("--small", action="store_true", help="a rehearsal on a CPU: tiny models, few steps")
    parser.add_argument("--only", nargs="+", default=list(MODELS))
    args = parser.parse_args()
    (OUT / "results").mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    threads = [threading.Thread(target=pipeline, args=(name, args, started)) for name in args.only]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (OUT / "finished").write_text(f"{time.monotonic() - started:.0f} s\n")
    say("finished", started)


def pipeline(name: str, args: argparse.Namespace, started: float) -> None:
    """Train one model, then generate with it; a failed training is tried once more (it resumes)."""
    pair, size, share, dropout, more = MODELS[name]
    valid, train = (next(Path("carry").glob(f"{part}.{pair}.*")) for part in ("valid", "train"))
    small = args.small or name == "preflight"
    if small:
        valid, train = head(valid, 40), head(train, 2000)
    command = [
        sys.executable,
        "-m",
        "mbrace",
        "train",
        "--train",
        str(train),
        "--valid",
        str(valid),
        "-o",
        f"out/models/{name}",
        "--size",
        "tiny" if small else size,
        "--spm",
        f"carry/{pair if name == 'preflight' else name}.spm",
        "--dropout",
        str(dropout),
        *more,
    ]
    if small:
        command += ["--steps", "20", "--tokens", "1024", "--validate-every", "20"]
    for attempt in (1, 2):
        left = 60 * args.minutes * share - (time.monotonic() - started)
        if left < 60 and not small:
            break
        if run(
            [*command, "--minutes", f"{left / 60:.2f}"],
            OUT / f"{name}.train.log",
            left + 90,
            f"{name}: training {attempt}",
            started,
        ):
            break
    remaining = 60 * args.deadline - (time.monotonic() - started)
    generate = [
        sys.executable,
        "experiments/gpu_generate.py",
        name,
        pair,
        "--sentences",
        str(args.sentences),
        "--seconds",
        f"{remaining - 15:.0f}",
        *(["--small"] if small else []),
    ]
    run(generate, OUT / f"{name}.generate.log", remaining, f"{name}: generation", started)


def head(path: Path, rows: int) -> Path:
    """The last rows of a file (the first are of one origin), for a rehearsal."""
    from mbrace.files import read_lines

    out = OUT / "small" / path.name.replace(".bz2", "").replace(".xz", "").replace(".gz", "")
    out.parent.mkdir(exist_ok=True)
    out.write_text("".join(line + "\n" for line in list(read_lines(str(path)))[-rows:]), encoding="utf-8")
    return out


def run(command: list[str], log: Path, seconds: float, what: str, started: float) -> bool:
    say(f"{what}: {' '.join(command[1:])}", started)
    with log.open("ab") as file:
        try:
            status = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, timeout=seconds).returncode
        except subprocess.TimeoutExpired:
            status = -1
    say(f"{what}: {'done' if status == 0 else f'FAILED ({status})'}", started)
    return status == 0


def say(message: str, started: float) -> None:
    print(f"[{time.monotonic() - started:6.0f} s] {message}", flush=True)


if __name__ == "__main__":
    main()
