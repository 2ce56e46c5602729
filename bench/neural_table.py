"""The table of bench/neural.py: rows as they are measured, ratios, Markdown. `python bench/neural_table.py` writes
bench/results/neural.md again from neural.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TITLE = """# Neural MBR decoding at COMET-22's size: speed only

Random weights of XLM-R-large's shape and COMET-22's head; pruning decisions from chrF++ tables of the same strings.
Written by `bench/neural.py`, which says how each row is measured; baselines are the loops of unbabel-comet 2.2.7 in
plain torch.
"""
HEAD = """## How much faster the head is

Than `estimate` in the same precision: as comet-mbr calls it, with one hypothesis and all its references, and in batches
of 16,384 pairs, which fill the GPU. Of `estimate`'s multiplications 43% are left.
"""
PRECISIONS = ("float32", "float32, TF32", "bfloat16", "float16")
CALLS = {"a batch": "as comet-mbr calls it", "batches": "in batches of 16,384"}


class Results:
    """The rows measured, and the machine they were measured on."""

    def __init__(self, about: dict[str, Any], rows: list[dict[str, Any]] | None = None) -> None:
        self.about, self.rows = about, rows or []

    def add(self, section: str, what: str, count: int, seconds: float, unit: str, note: str = "") -> None:
        """One row, printed as well."""
        row = {"section": section, "what": what, "rate": count / seconds, "unit": unit, "note": note}
        self.rows.append(row)
        print(f"{section:10} {what:75} {row['rate']:12,.1f} {unit}  {note}", flush=True)

    def rate(self, section: str, start: str, end: str = "") -> float:
        """The rate of the row whose text begins with `start` and ends with `end`."""
        for row in self.rows:
            if row["section"] == section and row["what"].startswith(start) and row["what"].endswith(end):
                return float(row["rate"])
        return float("nan")

    def head(self, precision: str, call: str) -> float:
        """How many times as fast as `estimate` the head is."""
        return self.rate("head", "mbrace", f", {precision}") / self.rate("head", f"estimate, {call}", f", {precision}")

    def ratios(self) -> list[tuple[str, float]]:
        """The ratios shown in the tables: (what, ratio)."""
        race, standard = "mbrace, confidence pruning, 64", "standard MBR"
        single, loop = "mbrace, confidence pruning, one sentence", "comet-mbr's loop"
        found = []
        for what, ours, theirs in (
            ("embedding: mbrace bfloat16 / comet-mbr's loop float16", "bfloat16", "float16"),
            ("embedding: mbrace float16 / comet-mbr's loop float16", " float16", "float16"),
            ("embedding: both float32", "float32", "float32"),
        ):
            found.append((what, self.rate("embedding", "mbrace", ours) / self.rate("embedding", loop, theirs)))
        for precision in PRECISIONS:
            for call, called in CALLS.items():
                found.append((f"head, {precision}: mbrace / estimate {called}", self.head(precision, call)))
        for what, start, ours, theirs in (
            ("race: mbrace bfloat16 / standard MBR float32", standard, "bfloat16", "float32"),
            ("race: mbrace bfloat16 / standard MBR float32 with TF32", standard, "bfloat16", "TF32"),
            ("race, equal precision: both bfloat16", standard, "bfloat16", "bfloat16"),
            ("race, equal precision: both float32 with TF32", standard, "TF32", "TF32"),
            ("race, equal precision: both float32", standard, "float32", "float32"),
            ("race: 64 sentences racing / one at a time, both pruned", single, "bfloat16", "bfloat16"),
        ):
            found.append((what, self.rate("races", race, ours) / self.rate("races", start, theirs)))
        return [row for row in found if row[1] == row[1]]

    def write(self, out: Path) -> None:
        """neural.md and neural.json."""
        out.mkdir(parents=True, exist_ok=True)
        ratios = self.ratios()
        saved = {"about": self.about, "rows": self.rows, "ratios": ratios}
        (out / "neural.json").write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")
        lines = [TITLE, *(f"- {name}: {value}" for name, value in self.about.items()), ""]
        lines += ["| ratio | |", "|---|---|"]
        lines += [f"| {what} | {ratio:.2f}x |" for what, ratio in ratios if what[:4] != "head"]
        if any(what[:4] == "head" for what, _ in ratios):
            lines += ["", HEAD, f"| | {' | '.join(CALLS.values())} |", "|---|---|---|"]
            for precision in PRECISIONS:
                cells = [f"{self.head(precision, call):.2f}x" for call in CALLS]
                lines.append(f"| {precision} | {' | '.join(cells)} |")
        for section in dict.fromkeys(row["section"] for row in self.rows):
            rows = [row for row in self.rows if row["section"] == section]
            lines += ["", f"## {section}", "", f"| | {rows[0]['unit']} | |", "|---|---|---|"]
            lines += [f"| {row['what']} | {row['rate']:,.1f} | {row['note']} |" for row in rows]
        (out / "neural.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    folder = Path(__file__).parent / "results"
    stored = json.loads((folder / "neural.json").read_text(encoding="utf-8"))
    Results(stored["about"], stored["rows"]).write(folder)
