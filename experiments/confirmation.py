"""What the confirmation sets say, by the rules of results/rules-confirm.md: results/CONFIRMATION.md and its CSV files.

    python experiments/confirmation.py results

results/data has the outcomes on validation sets, which give the margins, and results/confirmation/data those on the
confirmation sets, as full_scale.py writes them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from mbrace.experiments.claims import claims, correct, margins, table_rows
from mbrace.experiments.experiment import write_csv
from mbrace.experiments.report import format_p, systems_table, table
from mbrace.experiments.studies import Row, grouped
from mbrace.experiments.trials import Outcomes

PAGE = """# Confirmation: tables and verdicts

By the rules of [rules-confirm.md](rules-confirm.md), written by `python experiments/confirmation.py results`;
what they mean is in [RESULTS.md](RESULTS.md). {shown} of {tested} tested claims are shown,
corrected for all {tests} tests (Holm).

## Claims

{claims}

## Tables

Scores, averaged over trials and sentences, are by the metric that decoded, then by others: standard MBR's, then each
row's difference from it and, in brackets, how much of the margin that is. The last columns: by how many of the metrics
the 90% interval of the difference lies inside the margin, and inside a quarter of it.

{sets}
"""
ALPHA = 0.05


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


def page(rows: Sequence[Row], claimed: Sequence[Row]) -> str:
    """The whole page."""
    shown = sum(verdict(row) == "**shown**" for row in claimed)
    tests = [row for row in claimed if row.get("p_holm") is not None]
    tested = sum(not row["claim"].startswith("accuracy") for row in tests)
    claims_table = table(
        ("set", "utility", "claim", "found", "p, corrected", "verdict"),
        [
            (
                f"{row['pair']} {row['split']}",
                row["utility"],
                row["claim"],
                row["found"],
                format_p(row.get("p_holm")),
                verdict(row),
            )
            for row in claimed
        ],
    )
    sets = [
        f"### {pair} {split}, {utility}: {own[0]['sentences']:,} sentences\n\n{systems_table(own)}"
        for (pair, split, utility), own in grouped(rows, "pair", "split", "utility").items()
    ]
    return PAGE.format(shown=shown, tested=tested, tests=len(tests), claims=claims_table, sets="\n\n".join(sets))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    args = parser.parse_args()
    rows, claimed = judged(args.results)
    write_csv(args.results / "confirmation" / "table.csv", rows)
    write_csv(args.results / "confirmation" / "claims.csv", claimed)
    (args.results / "CONFIRMATION.md").write_text(page(rows, claimed), encoding="utf-8")


if __name__ == "__main__":
    main()
