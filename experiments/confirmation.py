"""What the confirmation sets say, by the rules of results/rules-confirm.md: results/CONFIRMATION.md and its CSV files.

    python experiments/confirmation.py results

results/data has the outcomes on validation sets, which give the margins, and results/confirmation/data those on the
confirmation sets, as full_scale.py writes them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mbrace.experiments.claims import claims, correct, margins, table_rows
from mbrace.experiments.experiment import write_csv
from mbrace.experiments.studies import Row, grouped
from mbrace.experiments.trials import SCORE_BY, Outcomes

NARROW = 0.25  # of a margin: where its 90% interval lies inside this too, the page says so
ALPHA = 0.05
COLUMNS = {
    "score": "score",
    "accuracy": "accuracy",
    "strict_accuracy": "accuracy, ties apart",
    "rr": "reciprocal rank",
    "same": "same text",
    "tied": "or as good",
    "pseudo_references": "R",
    "utility_calls": "calls",
}


def read(folder: Path) -> list[Outcomes]:
    """All outcomes in a folder, chrF++ first."""
    found = [Outcomes.load(path) for path in sorted((folder / "data").glob("*.npz"))]
    return sorted(found, key=lambda each: (each.about["name"], each.about["split"], each.about["label"] != "chrF++"))


def judged(results: Path) -> tuple[list[Row], list[Row]]:
    """The rows of the tables, and the claims with their corrected p-values."""
    valid = {
        (each.about["name"], each.about["label"]): each for each in read(results) if each.about["split"] == "valid"
    }
    rows: list[Row] = []
    claimed: list[Row] = []
    for test in read(results / "confirmation"):
        own = valid[test.about["name"], test.about["label"]]
        margin_of = margins(own, valid.get((test.about["name"], "chrF++")))
        rows += table_rows(test, margin_of)
        claimed += claims(own, test, margin_of)[:-1]  # the last one is about the validation set
    correct(claimed)
    return rows, claimed


def verdict(row: Row) -> str:
    """In one word, by the corrected p-value; a claim without a test has none."""
    if row["claim"].startswith("accuracy"):
        return "holds" if row["holds"] else "does not hold"
    if row.get("p_holm") is None:
        return "not tested"
    return "**shown**" if row["holds"] and row["p_holm"] < ALPHA else "not shown"


def table_of(rows: Sequence[Row]) -> list[str]:
    """One set and utility: a line for each setting."""
    by_setting = {setting: {row["measure"]: row for row in own} for (setting,), own in grouped(rows, "setting").items()}
    others = [name for name in next(iter(by_setting.values())) if name.startswith(SCORE_BY)]
    names = [*COLUMNS, *others]
    heads = [*COLUMNS.values(), *(name.removeprefix(SCORE_BY) for name in others), "scores inside the margin"]
    lines = [f"| | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for setting, own in by_setting.items():
        cells = [number(name, own[name]["value"]) if name in own else "" for name in names]
        tested = [own[name]["inside_margin"] for name in ("score", *others) if name in own]
        tested = [inside for inside in tested if inside is not None]
        cells.append(f"{sum(tested)} of {len(tested)}" if tested else "")
        lines.append(f"| {setting} | {' | '.join(cells)} |")
    return lines


def number(measure: str, value: float) -> str:
    """Counts without decimals, rates with three."""
    if measure == "utility_calls":
        return f"{value:,.0f}"
    return f"{value:.1f}" if measure == "pseudo_references" else f"{value:.3f}"


def page(rows: Sequence[Row], claimed: Sequence[Row]) -> str:
    """The whole page."""
    shown = [row for row in claimed if verdict(row) == "**shown**"]
    tested = [row for row in claimed if row.get("p_holm") is not None and not row["claim"].startswith("accuracy")]
    lines = ["# Confirmation: tables and verdicts", ""]
    lines += [
        "By the rules of [rules-confirm.md](rules-confirm.md), written by `python experiments/confirmation.py results`;"
    ]
    lines += [
        f"what they mean is in [RESULTS.md](RESULTS.md). {len(shown)} of {len(tested)} tested claims are shown,",
        "",
    ]
    lines[-2] += f" corrected for all {sum(row.get('p') is not None for row in claimed)} tests (Holm)."
    lines += [
        "## Claims",
        "",
        "| set | utility | claim | found | p, corrected | verdict |",
        "|---|---|---|---|---:|---|",
    ]
    for row in claimed:
        corrected = "" if row.get("p_holm") is None else "< 0.001" if row["p_holm"] < 0.001 else f"{row['p_holm']:.3f}"
        name = f"{row['pair']} {row['split']}"
        lines.append(f"| {name} | {row['utility']} | {row['claim']} | {row['found']} | {corrected} | {verdict(row)} |")
    lines += [
        "",
        "## Tables",
        "",
        "Scores are by the metric that decoded, then by others; trials and sentences averaged.",
    ]
    for (pair, split, utility), own in grouped(rows, "pair", "split", "utility").items():
        lines += ["", f"### {pair} {split}, {utility}: {own[0]['sentences']:,} sentences", "", *table_of(own)]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    args = parser.parse_args()
    found: tuple[Any, Any] = judged(args.results)
    rows, claimed = found
    write_csv(args.results / "confirmation" / "table.csv", rows)
    write_csv(args.results / "confirmation" / "claims.csv", claimed)
    (args.results / "CONFIRMATION.md").write_text(page(rows, claimed), encoding="utf-8")


if __name__ == "__main__":
    main()
