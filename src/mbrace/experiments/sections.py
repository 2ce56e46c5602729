"""Sections of the report that other studies add: title, sentences, table and figure, in one form.

A study saves its section where the report looks for it; `mbrace experiment -o results --report-only` then puts it into
report.html and RESULTS.md and draws figures/NAME.png and .svg:

    Section(
        name="methods",  # of its files, and of the place on the page (report.html#methods)
        title="Other ways to save calls",
        text="What was asked and what was found: Markdown, a few sentences.",
        headings=("method", "calls", "accuracy (95% interval)"),
        rows=[("alpha = 0.99", "9,701", "0.721 (0.69 to 0.75)")],  # cells as they are shown
        figure=Figure(  # of mbrace.experiments.points; or picture="figures/methods.svg", drawn by the study itself
            x="utility calls per sentence (log scale)",
            y="exact accuracy",
            describes="Accuracy against calls of seven methods on de-en.",
            panels={"de-en, chrF++": [Point(9701, 0.721, series="race", label="0.99", y_low=0.69, y_high=0.75)]},
            log_x=True,
        ),
    ).save(Path("results"))
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mbrace.errors import UserError
from mbrace.experiments.points import Figure
from mbrace.io.atomic import replace_file


@dataclass(frozen=True)
class Section:
    """What a study shows."""

    name: str
    title: str
    text: str
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    figure: Figure | None = None
    picture: str | None = None  # path of an own PNG or SVG, relative to the results, instead of `figure`
    picture_describes: str = ""  # for readers who cannot see the picture
    order: int = 50  # sections with a smaller number come first

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]*", self.name):
            raise UserError(f"section {self.name!r}: give a name of lower-case letters, digits and hyphens")
        if any(len(row) != len(self.headings) for row in self.rows):
            raise UserError(f"section {self.name}: rows: each must have {len(self.headings)} cells, one per heading")
        if self.figure and self.picture:
            raise UserError(f"section {self.name}: give either a figure or a picture")

    def save(self, results: Path) -> Path:
        """Write data/NAME.section.json under `results`."""
        path = results / "data" / f"{self.name}.section.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, (json.dumps(asdict(self), ensure_ascii=False, indent=1) + "\n").encode(), shared=True)
        return path


def load(results: Path) -> list[Section]:
    """The sections saved under `results`, in the order they are shown in."""
    found = []
    for path in (results / "data").glob("*.section.json"):
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            figure = stored.pop("figure", None)
            section = Section(**stored, figure=Figure.from_json(figure) if figure else None)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(f"{path}: not a section of a report ({error}); save it again or delete it") from error
        if section.picture and not (results / section.picture).is_file():
            raise UserError(f"{path}: picture: {results / section.picture} is missing; draw it again")
        found.append(section)
    return sorted(found, key=lambda section: (section.order, section.name))
