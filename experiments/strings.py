"""The page about the study of strings, from the rows that full_scale.py saved: which ways are equal to standard MBR.

    python experiments/strings.py OUT

OUT/data has the rows (PAIR.test.UTILITY.strings.json.gz) and outcomes of the validation sets; writes OUT/STRINGS.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from mbrace.experiments.claims import CHRF_MARGIN, margins
from mbrace.experiments.significance import Equivalence, equivalence
from mbrace.experiments.strings import MARGIN, STANDARD, summarise
from mbrace.experiments.strings_section import load_rows
from mbrace.experiments.trials import Outcomes

SHOWN = ("standard 256 + 256", "standard 128 + 128", "standard 64 + 64", "alpha 0.99", "regret 0.02", "regret 0.04",
         "pool from beam 16, regret 0.08", "pool from beam 64, regret 0.04", "pool from beam 64, regret 0.02",
         "pool from beam 128, regret 0.04", "forecast 0.01, regret 0.04", "forecast 0.01, regret 0.06",
         "forecast 0.005, regret 0.04", "forecast 0.0005, regret 0.04", "forecast 0.0005, regret 0.06",
         "forecast 0.0005, regret 0.03, small steps", "forecast 0.0005, regret 0.04, small steps",
         "forecast 0.0003, regret 0.03", "forecast 0.0003, regret 0.03",
         "standard 256 + 32", "standard 256 + 32, cover", "standard 256 + 64",
         "standard 256 + 64, cover", "regret 0.04, cover", "regret 0.08, cover", "forecast 0.0005, regret 0.04, cover",
         "forecast 0.0005, regret 0.06, cover", "forecast 0.0005, regret 0.08, cover")  # fmt: skip

ABOUT = """# Fewer strings

How much is lost when fewer strings are made and encoded. {sentences} of newstest2018, by the
translator of the [fourth run](rules.md); 256 beam hypotheses, 256 draws to race with, 768 independent draws held out.
Made by `python experiments/full_scale.py run DATA OUT`, this page by `python experiments/strings.py results`;
rows of every sentence are in `data/`. What counts as equal was [written down before](rules.md).

- *strings*: distinct strings encoded per sentence, and as a share of standard MBR's.
- *utility*: expected utility on the held-out draws minus standard MBR's, in standard deviations between hypotheses
  (95% interval). **Equal** if the interval is above -{margin}.
- *decoded with*, *other metric*: change of the score against the human reference (90% interval), by the metric that
  was decoded with and by the one that was not. **Equal**: the interval is inside the margin ({margins}). **Worse**:
  below it altogether. **Lower**, **higher**: not inside the margin, and below or above 0.
- The baseline of every row is standard MBR with 256 + 256 independent draws; `arithmetic` rows draw evenly.
- *cover*: the draws of a file in an order that covers; a live model's are not known beforehand. *small steps*:
  pseudo-references grow by half (8, 12, 18, ...), not by the utility's own schedule.

{said}"""


def report(out: Path) -> None:
    """Write OUT/STRINGS.md from the rows in OUT/data; OUT/strings-notes.md says what they say."""
    stored = [row for row in load_rows(out / "data") if row["split"] == "test"]
    pairs = sorted({row["pair"] for row in stored})
    counts = {
        f"{pair}, {utility}": len({row["id"] for row in stored if (row["pair"], row["utility"]) == (pair, utility)})
        for pair in pairs
        for utility in ("learned", "chrF++")
    }
    margin_of = {pair: learned_margin(out / "data", pair) for pair in pairs}
    notes = out / "strings-notes.md"
    lines = [
        ABOUT.format(
            sentences=", ".join(f"{count:,} sentences ({name})" for name, count in counts.items()),
            margin=MARGIN,
            margins=f"{CHRF_MARGIN} chrF++; "
            + ", ".join(f"{margin:.4f} learned on {pair}" for pair, margin in margin_of.items()),
            said=notes.read_text(encoding="utf-8") if notes.exists() else "",
        )
    ]
    for pair in pairs:
        rows = [row for row in stored if row["pair"] == pair]
        for utility, other in (("learned", "chrF++"), ("chrF++", "learned")):
            lines.append(f"\n## {pair}, decoded with {utility}\n")
            own = [row for row in rows if row["utility"] == utility and row["way"] in SHOWN]
            base = [row for row in own if row["sampling"] == "independent" and row["way"] == STANDARD.name]
            chosen = [row for row in own if row["sampling"] == "independent"]
            chosen += [{**row, "way": f"{row['way']}, arithmetic"} for row in own if row["sampling"] == "arithmetic"]
            lines += equality_lines(chosen, base, utility, other, margin_of[pair])
    (out / "STRINGS.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def equality_lines(
    rows: list[dict[str, Any]],
    base: list[dict[str, Any]],
    utility: str,
    other: str,
    learned: float,
    *,
    as_good: bool = False,
) -> list[str]:
    """A table with a line per way: what it costs, and whether it is equal to the rows `base` of standard MBR; `learned`
    is the margin of the learned metric. `as_good` adds whether it is as good, where higher is no failure."""
    margin_of = {"chrF++": CHRF_MARGIN, "learned": learned}
    last = " as good |" if as_good else ""
    lines = [
        f"| | strings | share | calls | utility | decoded with ({utility}) | other metric ({other}) |{last}",
        "|---|---:|---:|---:|---:|---:|---:|" + "---|" * as_good,
    ]
    for found in summarise(rows):
        of_way = [row for row in rows if row["way"] == found["way"]]
        tests = [_change(of_way, base, name, margin_of[name]) for name in (utility, other)]
        changes = [_verdict(test, name, margin_of[name]) for test, name in zip(tests, (utility, other), strict=True)]
        good = found["utility interval"][0] > -MARGIN
        good = good and all(test.low > -margin_of[name] for test, name in zip(tests, (utility, other), strict=True))
        lines.append(_line(found, changes) + f" {'**yes**' if good else 'no'} |" * as_good)
    return lines


def learned_margin(data: Path, pair: str) -> float:
    """As for the claims of RESULTS.md: as large a part of what separates sentences as 0.2 chrF++ is."""
    learned, lexical = (Outcomes.load(data / f"{pair}.valid.{name}.npz") for name in ("learned", "chrf++"))
    return margins(learned, lexical)["score"]


def _change(rows: list[dict[str, Any]], base: list[dict[str, Any]], metric: str, margin: float) -> Equivalence:
    """The change of a human score."""
    assert [row["id"] for row in rows] == [row["id"] for row in base]
    ours, standard = (np.array([row[f"human {metric}"] for row in each]) for each in (rows, base))
    return equivalence(ours, standard, margin)


def _verdict(test: Equivalence, metric: str, margin: float) -> str:
    """A change with its 90% interval, and what it shows."""
    below, above = ("worse" if test.high < -margin else "lower" if test.high < 0 else ""), "higher" * (test.low > 0)
    verdict = "equal" if test.inside else below or above
    digits = 2 if metric == "chrF++" else 3
    value = f"{test.difference:+.{digits}f} [{test.low:+.{digits}f}, {test.high:+.{digits}f}]"
    return f"{value} **{verdict}**" if verdict else value


def _line(found: dict[str, Any], changes: list[str]) -> str:
    low, high = found["utility interval"]
    worth = f"{found['utility']:+.3f} [{low:+.3f}, {high:+.3f}]" + (" **equal**" if low > -MARGIN else "")
    share, calls = found["share of strings"], found["utility_calls"]
    if found["way"] == STANDARD.name:
        worth, changes = "0", ["0", "0"]
    return (
        f"| {found['way']} | {found['strings']:.0f} | {share:.2f}x | {calls:,.0f} | {worth} | {' | '.join(changes)} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    report(parser.parse_args().out)


if __name__ == "__main__":
    main()
