"""Whole jobs side by side: mbrace, mbrs and the paper's procedure on the same candidates in one run.

    python bench/peers.py

creates an environment for mbrs under build/ (it pins other versions) and writes bench/results/peers.{md,json,png}.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib as mpl
from chrf import machine
from jobs import JOBS
from texts import newstest_records

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PEERS = HERE.parent / "build" / "venv-peers"
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
        wanted = ["mbrs", "fastchrf", "sacrebleu", "setuptools<81"]
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
        "![seconds per sentence](peers.png)",
        "",
    ]
    return "\n".join(lines)


# the kinds of jobs: start of their names, label, colour (Okabe and Ito's), marker
KINDS = (
    ("mbrace", "mbrace", "#0072b2", "o"),
    ("mbrs", "mbrs", "#d55e00", "s"),
    ("paper", "the paper's procedure", "#555555", "D"),
)


def plot(rows: list[dict], path: Path) -> None:
    """A dot for each job; factors are against our own standard MBR with the same utility."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    rows = sorted(rows, key=lambda row: row["seconds"] / row["sentences"])
    per = {row["job"]: row["seconds"] / row["sentences"] for row in rows}
    figure, axes = plt.subplots(figsize=(8.6, 3.9), layout="constrained")
    for start, label, colour, marker in KINDS:
        own = [row["job"] for row in rows if row["job"].startswith(start)]
        at = [list(per).index(job) for job in own]
        axes.plot([per[job] for job in own], at, marker, color=colour, markersize=8, label=label)
    for number, (job, value) in enumerate(per.items()):
        standard = standard_of(job)
        factor = value / per[standard]
        text = f"{value:.2g} s" if job == standard else f"{value:.2g} s, {factor:,.2g}x {standard}"
        if factor >= 100:
            text = f"{value:.2g} s, {factor:,.0f}x {standard}"
        axes.annotate(text, (value, number), textcoords="offset points", xytext=(9, -3.5), fontsize=8.5)
    axes.set_yticks(range(len(per)), list(per))
    axes.set(
        xscale="log",
        xlabel="processor seconds per sentence (256 x 256), one thread, log scale",
        xlim=(min(per.values()) / 2, max(per.values()) * 150),
        title="Seconds per sentence, and times those of mbrace's own standard MBR with the same utility",
    )
    axes.title.set(fontsize=10)
    axes.invert_yaxis()
    axes.grid(alpha=0.25, axis="x")
    axes.grid(alpha=0.25, axis="y", linestyle=":")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0, 0.02))
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=24)
    parser.add_argument("--sacrebleu-sentences", type=int, default=3)
    parser.add_argument("--peers-python", help="a Python that has mbrs, instead of build/venv-peers")
    parser.add_argument(
        "--plot-only", action="store_true", help="measure nothing: draw peers.png from peers.json again"
    )
    args = parser.parse_args()
    if args.plot_only:
        plot(json.loads((RESULTS / "peers.json").read_text())["jobs"], RESULTS / "peers.png")
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
    plot(rows, RESULTS / "peers.png")


if __name__ == "__main__":
    main()
