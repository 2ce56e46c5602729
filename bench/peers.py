"""Whole jobs side by side: mbrace, mbrs and the paper's procedure on the same candidates in one run.

    python bench/peers.py            # writes bench/results/peers.{md,json}
    python bench/peers.py --chart    # writes docs/pictures/peers.svg and bench/results/commands.{md,json}

creates an environment for mbrs under build/ (it pins other versions). The chart is of whole commands, from
file to file, as a user of mbrs types them: wall seconds, and whether the bytes are the same.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from chrf import machine
from jobs import JOBS
from readme import peers_chart
from texts import candidates, newstest_records

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PEERS = HERE.parent / "build" / "venv-mbrs"  # as `make mbrs` makes it
PICTURE = HERE.parent / "docs" / "pictures" / "peers.svg"
# Of the chart: a metric's name, its options for mbrs-decode, and what runs it there
METRICS = (
    ("chrF++", "--metric chrf --metric.word_order 2", "mbrs (sacreBLEU)"),
    ("BLEU", "--metric bleu", "mbrs (sacreBLEU)"),
    ("chrF", "--metric chrf --metric.fastchrf true", "mbrs (fastChrF)"),
)
# The job that each job is compared with: standard MBR with the same utility.
STANDARD = {
    "mbrace chrF++": "mbrace chrF++",
    "paper": "mbrace chrF++",
    "mbrs": "mbrace chrF",
    "mbrace chrF": "mbrace chrF",
}


def peers_python(given: str | None) -> str:
    if given:
        return given
    python = PEERS / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(PEERS)], check=True)
        constraints = HERE.parent / "constraints.txt"
        # mbrs brings unbabel-comet, which needs pkg_resources.
        wanted = ["mbrs==0.1.8", "fastchrf", "sacrebleu", "setuptools<82", "numpy<2", "transformers<5"]
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "-c", str(constraints), *wanted], check=True)
    return str(python)


def run(job: str, path: Path, python: str) -> dict:
    chosen = python if job.startswith("mbrs") else sys.executable
    done = subprocess.run(
        [chosen, "-W", "ignore", str(HERE / "jobs.py"), job, str(path)], capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{job} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def standard_of(job: str) -> str:
    return STANDARD[
        next(prefix for prefix in ("mbrace chrF++", "mbrace chrF", "mbrs", "paper") if job.startswith(prefix))
    ]


def report(rows: list[dict], machine_line: str, many: int, few: int) -> str:
    lines = [
        "# Whole jobs, side by side",
        "",
        f"Written by `python bench/peers.py`. {machine_line}",
        "",
        "256 hypotheses and 256 pseudo-references per sentence, newstest candidates (`experiments/candidates`), one",
        f"thread, alpha 0.99, 500 resamples, schedule 16 to 256; {many} sentences, {few} for sacreBLEU. mbrs's fastest",
        "chrF is fastChrF, which counts no words, so mbrace is shown with chrF too. Agreement is with standard MBR of",
        "the same utility on the same sentences; memory is the peak of the process with its imports (mbrs: torch).",
        "",
        "| job | processor seconds per sentence | calls per sentence | peak memory | same answer as standard MBR |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        agreement = "" if row["agreement"] is None else f"{row['agreement']} of {row['sentences']}"
        lines.append(
            f"| {row['job']} | {row['seconds'] / row['sentences']:.3g} | {row['calls'] / row['sentences']:,.0f} "
            f"| {row['peak'] / 2**20:,.0f} MiB | {agreement} |"
        )
    per = {row["job"]: row["seconds"] / row["sentences"] for row in rows}
    pruning = per["mbrace chrF pruning"], per["mbrace chrF++ pruning"]
    lines += [
        "",
        f"Like for like: mbrace is {per['mbrs mbr, fastChrF'] / per['mbrace chrF']:,.0f}x as fast as mbrs in standard "
        f"MBR and {per['mbrs pruning_mbr, fastChrF'] / pruning[0]:,.0f}x with pruning (chrF); "
        f"{per['paper: sacreBLEU, standard'] / per['mbrace chrF++']:,.0f}x and "
        f"{per['paper: sacreBLEU, gather bootstrap'] / pruning[1]:,.0f}x the paper's procedure (chrF++).",
        "",
    ]
    return "\n".join(lines)


def commands(python: str, sentences: int, each: int) -> list[dict]:
    """Whole commands on the same flat file: seconds, and how many lines are mbrs's."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        records = candidates(sentences)
        lines = [text for record in records for text in record["hypotheses"][:each]]
        (Path(folder) / "hypotheses.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

        def timed(who: str, metric: str, command: list[str]) -> list[str]:
            seconds: list[float] = []
            while not seconds or (len(seconds) < 3 and sum(seconds) < 10):
                began = time.perf_counter()
                done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
                seconds.append(time.perf_counter() - began)
                if done.returncode:
                    raise SystemExit(f"{shlex.join(command)} failed:\n{done.stderr}")
            rows.append({"metric": metric, "who": who, "seconds": min(seconds)})
            print(f"{metric}, {who}: {min(seconds):.3g} s", file=sys.stderr)
            return (Path(folder) / "out.txt").read_text(encoding="utf-8").splitlines()

        for metric, options, peer in METRICS:
            words = ["hypotheses.txt", "-n", str(each), *options.split(), "--quiet", "-o", "out.txt"]
            mbrace = Path(sys.executable).with_name("mbrace")
            ours = timed("mbrace", metric, [str(mbrace), "mbrs-decode", *words])
            expected = timed(peer, metric, [str(Path(python).with_name("mbrs-decode")), *words])
            rows[-2]["same"] = sum(a == b for a, b in zip(ours, expected, strict=True))
            if "fastchrf" in options:
                own = timed("fastChrF, in a loop", metric, [python, str(HERE / "jobs.py"), "fastchrf", str(each)])
                rows[-1]["same"] = sum(a == b for a, b in zip(own, expected, strict=True))
    return rows


def draw_chart(python: str, sentences: int, each: int, results: Path, picture: Path) -> None:
    """Run the commands of the chart, and write it with its table."""
    rows, line = commands(python, sentences, each), machine()
    size = f"{sentences} sentences, {each} samples each"
    text = [
        "# The same command, by mbrace and by mbrs",
        "",
        f"Written by `python bench/peers.py --chart`. {line}",
        "",
        f"`mbrs-decode hypotheses.txt -n {each} --metric ...` of mbrs 0.1.8 and of `mbrace`, the same words:",
        f"{size}, standard MBR, wall seconds of the whole command (best of up to three).",
        "",
        "| metric | | seconds | lines as mbrs writes them |",
        "|---|---|---:|---:|",
    ]
    for row in rows:
        agreement = f"{row['same']} of {sentences}" if "same" in row else ""
        text.append(f"| {row['metric']} | {row['who']} | {row['seconds']:.2f} | {agreement} |")
    results.mkdir(parents=True, exist_ok=True)
    (results / "commands.md").write_text("\n".join([*text, ""]), encoding="utf-8")
    about = {"machine": line, "sentences": sentences, "samples": each, "rows": rows}
    (results / "commands.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    picture.write_text(peers_chart(about), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=24)
    parser.add_argument("--sacrebleu-sentences", type=int, default=3)
    parser.add_argument("--peers-python", help="a Python that has mbrs, instead of build/venv-mbrs")
    parser.add_argument(
        "--chart", action="store_true", help="only docs/pictures/peers.svg and bench/results/commands.*"
    )
    parser.add_argument("--tiny", type=Path, metavar="FOLDER", help="with --chart: four sentences, written to FOLDER")
    args = parser.parse_args()
    if args.chart:
        python = peers_python(args.peers_python)
        if args.tiny:
            args.tiny.mkdir(parents=True, exist_ok=True)
            draw_chart(python, 4, 16, args.tiny, args.tiny / "peers.svg")
        else:
            draw_chart(python, 48, 64, RESULTS, PICTURE)
        return
    python = peers_python(args.peers_python)
    records = newstest_records(4 * args.sentences)[::4]
    results: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as folder:
        for job in JOBS:
            count = args.sacrebleu_sentences if job.startswith("paper") else args.sentences
            path = Path(folder) / f"{count}.jsonl"
            path.write_text("".join(json.dumps(record) + "\n" for record in records[:count]), encoding="utf-8")
            best = min(
                (run(job, path, python) for _ in range(3 if job.startswith("mbrace") else 1)),
                key=lambda r: r["seconds"],
            )
            results[job] = {"job": job, "sentences": count, **best}
            print(f"{job}: {best['seconds'] / count:.4g} s per sentence", file=sys.stderr)
    for job, result in results.items():
        standard = results[standard_of(job)]["indices"]
        same = sum(a == b for a, b in zip(result["indices"], standard, strict=False))
        result["agreement"] = None if job == standard_of(job) else same
    rows, line = list(results.values()), machine()
    text = report(rows, line, args.sentences, args.sacrebleu_sentences)
    print(text)
    (RESULTS / "peers.json").write_text(json.dumps({"machine": line, "jobs": rows}, indent=1) + "\n")
    (RESULTS / "peers.md").write_text(text)


if __name__ == "__main__":
    main()
