"""Write the README's results from the committed tables: `python bench/readme.py` (no arguments, takes a second)."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"
KINDS = (
    ("beam", "256 beam hypotheses x 256 samples of 186 characters"),
    ("samples", "256 samples x 256 samples of 186 characters"),
    ("captions", "more diverse text, 256 x 256 of 190 characters"),
)


def main() -> None:
    readme = ROOT / "README.md"
    text = "\n\n".join([races(), translating(), speed()])
    pattern = re.compile(r"<!-- results -->.*<!-- /results -->", re.DOTALL)
    whole = pattern.sub(lambda _: f"<!-- results -->\n{text}\n<!-- /results -->", readme.read_text(encoding="utf-8"))
    readme.write_text(whole, encoding="utf-8")


def stored(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def races() -> str:
    """The paper's Table 1 in short, from results/."""
    cells: dict[tuple[str, str, str], dict[str, str]] = {}
    with (ROOT / "results" / "test_table.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            cells.setdefault((row["utility"], row["pair"], row["setting"]), {})[row["measure"]] = row["value"]
            if row["measure"] == "utility_calls":
                cells[row["utility"], row["pair"], row["setting"]]["paper"] = row["paper"]
    lines = [
        "**Racing against standard MBR, same candidates** (our models, 200 sentences of newstest2018, 256 hypotheses",
        "and 256 pseudo-references, 10 trials; the paper's factors are from its Table 1, its neural utility is COMET):",
        "",
        "| | standard | alpha 0.99 | alpha 0.9 | fewer calls at 0.99 (paper) | at 0.9 (paper) |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for utility, pair in dict.fromkeys((utility, pair) for utility, pair, _ in cells):
        settings = [cells[utility, pair, setting] for setting in ("beta=0", "alpha=0.99", "alpha=0.9")]
        digits = 2 if float(settings[0]["score"]) > 5 else 3
        scores = [f"{float(cell['score']):.{digits}f}" for cell in settings]
        full, paper = (float(settings[0][name]) for name in ("utility_calls", "paper"))
        factors = [
            f"{full / float(cell['utility_calls']):.1f}x ({paper / float(cell['paper']):.1f}x)" for cell in settings[1:]
        ]
        lines.append(f"| {pair}, {utility} score | {' | '.join(scores)} | {' | '.join(factors)} |")
    lines += [
        "",
        "![speed against accuracy](results/figures/tradeoff.chrf++.png)",
        "",
        "All tables and figures of the paper, what holds and what does not: [results/RESULTS.md](results/RESULTS.md),",
        "and `results/report.html` with a race viewer.",
    ]
    return "\n".join(lines)


def translating() -> str:
    """The bundled translator."""
    table = [line for line in (RESULTS / "translator.md").read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    short = [" | ".join(row[:3] + row[4:5]) for row in rows if not set(row[0]) <= set("-:")]
    lines = ["**The bundled German-English translator** (14.5 MiB, newstest2018, first 150 sentences, CPU):", ""]
    return "\n".join([*lines, f"| {short[0]} |", "|---|---:|---:|---:|", *(f"| {row} |" for row in short[1:])])


def speed() -> str:
    """Ratios, each measured in one run on one machine."""
    chrf = {(size["texts"], size["size"]): size for size in stored("chrf")["sizes"]}
    neural = {what: ratio for what, ratio, _ in stored("neural")["ratios"]}
    models = stored("models")
    seconds = {name: row["total"] for name, row in models["translating"].items()}
    rates = models["sampling"]
    generate = max(rate for name, rate in rates.items() if name.startswith("generate"))
    rows = []
    for texts, what in KINDS:
        pairs = chrf[texts, 256]
        times = {name: pairs[name] / pairs["ours"] for name in ("pairwise", "aggregate", "sacrebleu")}
        rows += [
            (f"exact chrF++, {what}, one core", f"{1000 * pairs['ours']:.1f} ms", "chrf"),
            ("- than fastChrF's pairwise chrF (no words)", f"{times['pairwise']:,.0f}x", "chrf"),
            ("- than fastChrF's approximate aggregate", f"{times['aggregate']:.0f}x", "chrf"),
            ("- than sacreBLEU (extrapolated from 32 x 32)", f"{times['sacrebleu']:,.0f}x", "chrf"),
        ]
    for file in stored("decode")["files"]:
        rates_of = {mode: 1000 / (wall - file["start"]) for mode, wall in file["wall"].items()}
        one, two, none = (rates_of[mode] for mode in ("alpha 0.99", "alpha 0.99, 2 threads", "no pruning"))
        what = f"`mbrace decode`, 256 x 256 of {file['characters']:.0f} characters, alpha 0.99, sentences per second"
        rows.append((f"{what} on one core", f"{one:,.0f}", "decode"))
        rows.append(("- on two cores; on one without pruning", f"{two:,.0f}; {none:,.0f}", "decode"))
    rows += [
        (
            "embedding at COMET-22's size than comet-mbr's loop, H200",
            f"{_ratio(neural, 'embedding: mbrace bf')}",
            "neural",
        ),
        (
            "racing than standard MBR the paper's way, COMET-22's size",
            f"{_ratio(neural, 'race: mbrace bfloat16 / standard MBR float32')}",
            "neural",
        ),
        ("- both in bfloat16", f"{_ratio(neural, 'race, equal precision')}", "neural"),
        (
            "epsilon sampling than the fastest use of `generate`, H200",
            f"{rates['mbrace sample'] / generate:.1f}x",
            "models",
        ),
        (
            "translating 100 sentences than MBR the paper's way (batching, mostly)",
            f"{seconds['standard, the paper' + chr(39) + 's way'] / seconds['racing, ahead']:.1f}x",
            "models",
        ),
    ]
    lines = [
        "**Speed**, each row a ratio measured in one run (faster than ...):",
        "",
        "| | | table |",
        "|---|---:|---|",
    ]
    lines += [f"| {what} | {value} | [{where}](bench/results/{where}.md) |" for what, value, where in rows]
    return "\n".join(lines)


def _ratio(ratios: dict[str, float], start: str) -> str:
    return next(f"{ratio:.1f}x" for what, ratio in ratios.items() if what.startswith(start))


if __name__ == "__main__":
    main()
