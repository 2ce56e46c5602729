"""The paper's evaluation at its own scale, on one machine with a GPU: train, generate, score, race; only outcomes stay.

    python experiments/full_scale.py run DATA OUT [--minutes 20] [--small]

DATA has train.PAIR.tsv.* (source, target, origin), valid.PAIR.* and test.PAIR.* (source, reference), and NAME.spm for
each model if there is one. `run` does everything side by side: two translators are trained (German and Turkish into
English share one; English into Estonian), then processes on the GPU generate 256 beam hypotheses and 1,024 epsilon
samples per sentence and score them with the learned metric, while workers on the CPU score with chrF++ and run the
trials (parts.py). OUT/results is what `mbrace experiment -o results --report-only OUT/results` reads. Each stage is a
command of its own, skips what is done, and may be called again:

    back-translate    OUT/back/tr-en.tsv: more pairs to train on (back_translation.py); part of a run with --back
    train MODEL       OUT/models/MODEL
    generate PAIR     job files; OUT/scores/PAIR.json and its beam-5 translations; --shard 0/2 does every second block
    work              takes up job files until there are no more
    collect           OUT/results/data from the parts that are there
    runtimes PAIR     Table 2
    pack FOLDER       tar files of at most 15 MB with the results and logs
    watch             prints how far a run is, until it ends or --minutes are over

`--small` rehearses everything on a CPU: tiny models, a few sentences.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tarfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from back_translation import BackTranslation, back_translate
from generating import generate
from parts import JobFolder, collect
from shared_stages import CONFIRM, MODEL_OF, MODELS, guarded, log, one, splits_of
from translators import train

PARENT = "FULL_SCALE_PARENT"  # the process number of the run that started a stage


def work(args: argparse.Namespace) -> None:
    """Take up jobs until OUT/generated says that there will be no more, or time is over."""
    os.nice(5)  # the processes that keep the GPU busy go first
    folder, idle = JobFolder(args.out), 0.0
    while not (args.until and time.time() > args.until):
        done = folder.work()
        if done is None:
            if (args.out / "generated").exists() and folder.waiting() == 0:
                break
            time.sleep(0.3)
            idle += 0.3
        elif "FAILED" in done:
            log(done)
    log(f"worker: finished, {idle:.0f} s without work")


def collect_set(args: argparse.Namespace, pair: str, split: str) -> dict[str, Any]:
    """The outcomes of one set from the parts that are there, if there are any: its counts and digests."""
    found: dict[str, Any] = {}
    target = args.out / "results" / ("confirmation" if split in CONFIRM[pair] else "")
    extra = {"candidates": {**made(args), "model": MODEL_OF[pair]}}
    guarded(
        f"collect {pair}.{split}",
        lambda: found.update({f"{pair}.{split}": collect(JobFolder(args.out), pair, split, target, extra)}),
    )
    return found


def made(args: argparse.Namespace) -> dict[str, Any]:
    """How candidates are made."""
    beam, samples = (8, 16) if args.small else (256, 1024)
    return {"beam": beam, "samples": samples, "epsilon": 0.02, "seed": 1}


def collect_all(args: argparse.Namespace) -> None:
    """Outcomes of every set, and the digests of their candidates."""
    found: dict[str, Any] = {}
    sets = [(pair, split) for pair in args.pairs for split in splits_of(pair)]
    with ProcessPoolExecutor(min(args.workers, len(sets))) as pool:
        for one_set in pool.map(collect_set, [args] * len(sets), *zip(*sets, strict=True)):
            found |= one_set
    (args.out / "results").mkdir(exist_ok=True)
    (args.out / "results" / "candidates.json").write_text(json.dumps({"made": made(args), **found}, indent=1) + "\n")
    for name, counts in found.items():
        log(f"{name}: {counts['sentences']} of {counts['of']} sentences, sha256 {counts['sha256'][:16]}")


def runtimes(args: argparse.Namespace) -> None:
    """Table 2 of one pair; nothing else should be running."""
    pair = args.name
    counts = ["--sentences", "2", "--repeats", "1"] if args.small else ["--sentences", "100", "--repeats", "3"]
    model, sources = args.out / "models" / MODEL_OF[pair], one(args.data, f"test.{pair}.*")
    words = ["--model", model, "--sources", sources, "--pair", pair, "--utility", "learned", *counts]
    results = args.out / "results"
    words += ["--no-report", "-o", results]
    sys.exit(command(f"table-2.{pair}", "-m", "mbrace", "experiment", "--runtimes", *words, log_to=args.out))


def command(name: str, *words: object, log_to: Path) -> int:
    """Run Python with these words; its output goes to OUT/logs/NAME.log."""
    (log_to / "logs").mkdir(parents=True, exist_ok=True)
    given = {**os.environ, PARENT: str(os.getpid())}
    with (log_to / "logs" / f"{name}.log").open("ab") as file:
        return subprocess.call([sys.executable, *map(str, words)], stdout=file, stderr=subprocess.STDOUT, env=given)


def end_with_parent() -> None:
    """End this process when the run that started it is gone, so that a new run has the folder to itself."""
    while os.getppid() == int(os.environ[PARENT]):
        time.sleep(1)
    os._exit(3)


def run(args: argparse.Namespace) -> None:
    """Everything side by side; whatever fails does not stop the rest."""
    started = time.time()
    (args.out / "run.pid").write_text(f"{os.getpid()}\n")
    end = started + 60 * args.minutes if args.minutes else 0.0
    folder = JobFolder(args.out)
    folder.release()
    (args.out / "generated").unlink(missing_ok=True)
    (args.out / "finished").unlink(missing_ok=True)
    (args.out / "machine.json").write_text(json.dumps(machine(), indent=1) + "\n")

    def stage(name: str, *words: object, until: float = 0.0) -> int:
        log(f"{name}: starts")
        shared = ["--until", until, *(["--small"] if args.small else [])]
        shared += ["--pairs", *args.pairs]
        shared += ["--valid", args.valid, *(["--test", args.test] if args.test else []), "--rows", args.rows]
        code = command(name, __file__, words[0], args.data, args.out, *words[1:], *shared, log_to=args.out)
        log(f"{name}: {'done' if code == 0 else f'FAILED ({code}), see logs/{name}.log'}")
        return code

    reserve = args.reserve if end else 0.0

    def whole_model(name: str) -> None:
        if args.back and BackTranslation.pair in MODELS[name].pairs:
            stage("back-translate", "back-translate", "--minutes", args.back)
        if stage(f"train.{name}", "train", name, *(["--minutes", args.train] if args.train else [])):
            return
        shards = [
            threading.Thread(
                target=stage,
                args=(f"generate.{pair}.{n}", "generate", pair, "--shard", f"{n}/{args.shards}"),
                kwargs={"until": end and end - reserve},
            )
            for pair in MODELS[name].pairs
            if pair in args.pairs
            for n in range(args.shards)
        ]
        in_parallel(shards)

    names = [name for name, model in MODELS.items() if set(model.pairs) & set(args.pairs)]
    workers = [
        threading.Thread(target=stage, args=(f"work.{n}", "work"), kwargs={"until": end}) for n in range(args.workers)
    ]
    for worker in workers:
        worker.start()
    in_parallel([threading.Thread(target=whole_model, args=(name,)) for name in names])
    (args.out / "generated").touch()
    log(f"all candidates are made; {folder.open()} jobs are open")
    for worker in workers:
        worker.join()
    stage("collect", "collect")
    for pair in args.table_2:
        if (end and time.time() > end - 5) or (args.small and pair != args.table_2[0]):
            log(f"{pair}: no time for Table 2; call runtimes {pair}")
        else:
            stage(f"runtimes.{pair}", "runtimes", pair)
    (args.out / "finished").touch()
    log(f"finished in {(time.time() - started) / 60:.1f} minutes")


def in_parallel(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def machine() -> dict[str, Any]:
    import torch
    import transformers

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    return {"gpu": gpu, "cores": os.cpu_count(), **versions}


def watch(args: argparse.Namespace) -> None:
    """Print counts every 20 seconds until the run has finished or the minutes are over."""
    folder, end = JobFolder(args.out), time.time() + 60 * (args.minutes or 9)
    while True:
        parts = [path.name.rsplit(".", 2)[0] for path in folder.parts.glob("*.part")]
        counts = {name: parts.count(name) for name in sorted(set(parts))}
        failed = len(list(folder.jobs.glob("*.failed")))
        log(f"parts {counts}, {folder.waiting()} waiting, {folder.open()} open, {failed} failed")
        if (args.out / "finished").exists() or time.time() > end:
            return
        time.sleep(min(20.0, max(1.0, end - time.time())))


def pack(args: argparse.Namespace) -> None:
    """Results, scores and logs as tar files of at most 15 MB each: they hold files that are compressed already."""
    target = Path(args.name)
    target.mkdir(parents=True, exist_ok=True)
    paths = [path for part in ("results", "scores", "logs") for path in (args.out / part).rglob("*") if path.is_file()]
    paths += [*args.out.glob("models/*/training.json"), *args.out.glob("*.json"), *args.out.glob("*.log")]
    paths += [*(args.out / "jobs").glob("*.error")][:20]
    groups: list[tuple[int, list[Path]]] = []
    for path in sorted(paths, key=lambda path: -path.stat().st_size):
        size = path.stat().st_size + 2048
        for index, (filled, members) in enumerate(groups):
            if filled + size <= 15_000_000:
                groups[index] = (filled + size, [*members, path])
                break
        else:
            groups.append((size, [path]))
    for number, (filled, members) in enumerate(groups):
        with tarfile.open(target / f"full-scale-{number}.tar", "w") as archive:
            for path in members:
                archive.add(path, path.relative_to(args.out))
        log(f"full-scale-{number}.tar: {len(members)} files, {filled / 1e6:.1f} MB")


STAGES = {"run": run, "back-translate": back_translate, "train": train, "generate": generate, "work": work,
          "collect": collect_all, "runtimes": runtimes, "pack": pack, "watch": watch}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stage", choices=list(STAGES))
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("name", nargs="?", default="", help="the model, pair or folder of the stage")
    parser.add_argument("--minutes", type=float, help="of the whole run, of training, or of watching")
    parser.add_argument("--train", type=float, metavar="MINUTES", help="of training in a run (9 and 5.5)")
    parser.add_argument("--back", type=float, metavar="MINUTES", help="of training a reverse model in a run (none)")
    parser.add_argument(
        "--reserve",
        type=float,
        default=150,
        help="seconds of a run that are left for trials when no more candidates are made (150)",
    )
    parser.add_argument("--until", type=float, default=0.0, help="seconds since 1970 after which no new work is begun")
    parser.add_argument("--shard", default="0/1", help="N/M: blocks N, N + M, ... of a pair")
    parser.add_argument("--shards", type=int, default=2, help="generating processes per pair (2)")
    parser.add_argument("--workers", type=int, default=12, help="processes for trials (12)")
    parser.add_argument("--rows", type=int, default=8192, help="sequences decoded at a time (8192)")
    parser.add_argument("--pairs", nargs="+", default=list(MODEL_OF), choices=list(MODEL_OF))
    parser.add_argument("--table-2", nargs="*", default=list(MODEL_OF), choices=list(MODEL_OF), help="pairs to time")
    parser.add_argument("--valid", type=int, default=500, help="sentences of each validation set (500)")
    parser.add_argument("--test", type=int, help="sentences of each test set (all)")
    parser.add_argument("--small", action="store_true", help="a rehearsal on a CPU: tiny models, few sentences")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if PARENT in os.environ:
        threading.Thread(target=end_with_parent, daemon=True).start()
    STAGES[args.stage](args)


if __name__ == "__main__":
    main()
