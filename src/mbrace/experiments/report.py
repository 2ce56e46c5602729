"""report.html, one page with recommendations, recorded races and charts that needs no network; and RESULTS.md.

Charts are data (`figures.py`) that `page/charts.js` draws; recorded races are packed, and unpacked by the browser.
`page/viewer.js` steps through races, `page/report.js` follows the page's controls and its address.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from mbrace.api import decode_corpus
from mbrace.errors import require
from mbrace.experiments.figures import MEASURES, charts
from mbrace.experiments.studies import CHANGES, LEAST, RULE, Row, grouped
from mbrace.experiments.summary import (
    SETTINGS,
    SPLITS,
    describe_utility,
    exhausted_notes,
    format_interval,
    format_paper_value,
    format_value,
    measure_name,
    recommendation_cells,
    run_time_tables,
    summary,
    with_interval,
)
from mbrace.experiments.tables import Table
from mbrace.experiments.trials import measure as measures_of
from mbrace.experiments.trials import sample
from mbrace.io.atomic import replace_file
from mbrace.prune import Confidence
from mbrace.records import Record, key
from mbrace.result import RaceRecorder, RecordedStep
from mbrace.settings import Race
from mbrace.utilities.replay import Replay

RACES_SIZE = 1_000_000  # the most characters of packed races; the rest of a page is about 250,000
# Headings and row names of tables that the page explains, and the term of each.
TERM_OF = {
    "RR": "rr",
    "reciprocal rank": "rr",
    "Accuracy": "accuracy",
    "exact accuracy": "accuracy",
    "score by the decoding metric": "score",
    "# utility calls": "calls",
    **dict(zip(SETTINGS.values(), ("beta", "alpha", "alpha"), strict=True)),
}


def write(
    out: Path,
    about: Sequence[Mapping[str, Any]],
    rows: Mapping[str, Sequence[Row]],
    races: Sequence[Mapping[str, Any]],
    notes: str = "",
    drawn: Sequence[str] = (),
) -> None:
    """Write report.html and RESULTS.md from the rows of all tables, the recorded races, the notes and the figures."""
    jinja2 = require("jinja2", extra="experiments")
    page = resources.files("mbrace.experiments") / "page"
    names = ("report.html", "report.css", "charts.js", "viewer.js", "report.js", "results.md")
    texts = {name: (page / name).read_text(encoding="utf-8") for name in names}
    options = {"trim_blocks": True, "lstrip_blocks": True, "undefined": jinja2.StrictUndefined}
    shown = context(about, rows, notes)
    packed, count = pack_races(races)
    shown |= {"race_count": count, "races_recorded": sum(len(file["sentences"]) for file in races)}
    data = {"choices": list(dict.fromkeys((row["pair"], row["utility"]) for row in rows["tradeoff"]))}
    html = jinja2.Environment(autoescape=True, **options).from_string(texts["report.html"])
    written = html.render(
        shown,
        contents=contents(shown),
        css=texts["report.css"],
        script="\n".join(texts[name] for name in ("charts.js", "viewer.js", "report.js")),
        data=_embedded(data | {"charts": charts(rows)}),
        races=packed,
    )
    (out / "report.html").write_text(written, encoding="utf-8")
    words = jinja2.Environment(autoescape=False, **options).from_string(texts["results.md"])
    (out / "RESULTS.md").write_text(summary(words, shown, rows, drawn), encoding="utf-8")


def context(about: Sequence[Mapping[str, Any]], rows: Mapping[str, Sequence[Row]], notes: str) -> dict[str, Any]:
    """What both pages show, but for charts and races."""
    files = {(one["name"], one["label"], one["split"]): one["file"] for one in about}
    utilities = list(dict.fromkeys(one["label"] for one in about))
    pairs = list(dict.fromkeys(one["name"] for one in about))
    exhausted = exhausted_notes(about)
    return {
        "title": " and ".join(pairs) if len(pairs) < 3 else f"{', '.join(pairs[:-1])} and {pairs[-1]}",
        "about": about,
        "files": list({one["file"]: one for one in about}.values()),
        "pairs": pairs,
        "utilities": utilities,
        "leads": leads(rows["recommended"]),
        "least": LEAST,
        "measures": {name: what for name, what in CHANGES.items() if any(name in row for row in rows["recommended"])},
        "rule": RULE,
        "scored": any("score" in row for row in rows["tradeoff"]),
        "against": alpha_against_beta(rows["alpha_over_beta"], files),
        "tables": test_tables(rows["test_table"], files),
        "systems": list(grouped(rows["test_table"], "utility", "pair").values()),
        "exhausted": [markdown(line) for line in exhausted],
        "exhausted_notes": exhausted,
        "settings": SETTINGS,
        "splits": SPLITS,
        "false_pruning": bool(rows["false_pruning"]),  # with fewer than four pseudo-references in R* there is none
        "runtimes": run_time_tables(rows["runtimes"]),
        "notes": shown_notes(notes),
        "notes_text": notes.strip(),
        "claims": [
            row | {"file": files[row["pair"], row["utility"], row["split"]]}
            for row in sorted(rows["claims"], key=lambda row: str(row["claim"]))
        ],
        "learned": any(utility.split(" ")[0] == "learned" for utility in utilities),
        "term_of": TERM_OF,
        "signatures": list(dict.fromkeys((one["label"], one["utility"]) for one in about)),
    }


def contents(context: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The ids and titles of the sections that the page has, in order."""
    found = [("recommended", "Recommended")]
    found += [("viewer", "Watch a race")] if context["race_count"] else []
    found += [("tradeoff", "Speed against accuracy"), ("test", "Test results"), ("survivors", "Survivors")]
    found += [("false-pruning", "False pruning")] if context["false_pruning"] else []
    found += [("run-times", "Run times")] if context["runtimes"] else []
    found += [("notes", context["notes"]["title"])] if context["notes"] else []
    return [*found, ("paper", "Claims tested"), ("terms", "Terms")]


def finite(value: Any) -> Any:
    """The value with null in place of NaN and infinity, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def _embedded(value: Any) -> str:
    """JSON that is safe inside a script element."""
    return json.dumps(finite(value), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def pack_races(races: Sequence[Mapping[str, Any]], limit: int = RACES_SIZE) -> tuple[str, int]:
    """The races as base64 of gzip, and of how many sentences: fewer per file where all would be too large."""
    most = max((len(file["sentences"]) for file in races), default=0)
    while most:
        kept = [{**file, "sentences": file["sentences"][:most]} for file in races if file["sentences"]]
        text = json.dumps(finite(kept), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        packed = base64.b64encode(gzip.compress(text, mtime=0)).decode()
        if len(packed) <= limit:
            return packed, sum(len(file["sentences"]) for file in kept)
        most = min(most - 1, most * limit // len(packed))
    return "", 0


def leads(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """For each file and utility: the cells of standard MBR, of the default race and of the recommended one."""
    found = []
    for (pair, utility), own in grouped(rows, "pair", "utility").items():
        by_kind = {row["kind"]: row for row in own}
        lead = {"pair": pair, "utility": utility, "described": describe_utility(utility), "race": None}
        lead |= {name: own[0][name] for name in ("file", "sentences")}
        best = by_kind.get("recommended")
        if best is not None and best["alpha"] is not None:
            race = {name: f"{best[name]:g}" for name in ("alpha", "regret")}
            lead["race"] = race | {"schedule": best["schedule"].replace(" ", ", ")}
        found.append(lead | {kind: recommendation_cells(row) for kind, row in by_kind.items()})
    return found


def markdown(text: str) -> str:
    """Markdown as HTML; markup in it stays text."""
    module = require("markdown_it", extra="experiments")
    html: str = module.MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    return html


def shown_notes(text: str) -> dict[str, str] | None:
    """The hand-written notes: the title that they begin with, or "Notes", and the rest as HTML."""
    found = re.match(r"\s*#{1,2} +(.+)\n", text)
    body = text[found.end() :] if found else text
    if not body.strip():
        return None
    return {"title": found[1].strip() if found else "Notes", "text": markdown(body)}


def alpha_against_beta(rows: Sequence[Row], files: Mapping[tuple[str, str, str], str]) -> list[dict[str, Any]]:
    """For each pair and utility: a line per measure, a cell per alpha with the difference and its interval."""
    tables = []
    for (pair, utility, split), own in grouped(rows, "pair", "utility", "split").items():
        found = {(row["measure"], row["alpha"]): row for row in own}
        alphas = sorted({row["alpha"] for row in own})
        lines = []
        for measure in (name for name in MEASURES if any(row["measure"] == name for row in own)):
            cells = []
            for alpha in alphas:
                row = found.get((measure, alpha))
                ends = f"{row['low']:+.3f} to {row['high']:+.3f}" if row else ""
                cells.append({"value": f"{row['difference']:+.3f}" if row else "", "interval": ends})
            lines.append({"name": MEASURES[measure], "cells": cells})
        table = {"pair": pair, "utility": utility, "file": files[pair, utility, split], "lines": lines}
        tables.append(table | {"alphas": [f"{alpha:g}" for alpha in alphas]})
    return tables


def test_tables(rows: Sequence[Row], files: Mapping[tuple[str, str, str], str]) -> list[dict[str, Any]]:
    """Table 1 for each utility and pair: lines of cells with our number, both intervals and the paper's number."""
    tables = []
    for (utility, pair), own in grouped(rows, "utility", "pair").items():
        lines = []
        for (measure,), measured in grouped(own, "measure").items():
            if measure in ("same", "tied"):  # nothing to show for standard MBR
                continue
            cells = []
            for setting in SETTINGS:
                row = next(row for row in measured if row["setting"] == setting)
                cell = {
                    "value": format_value(measure, row["value"]),
                    "paper": format_paper_value(measure, row["paper"]),
                }
                for kind in ("sentences", "trials"):
                    cell[kind] = format_interval(row, kind)
                cell["difference"] = _difference(row)
                cell["p"] = "" if row["p_randomisation"] is None else f"{row['p_randomisation']:.3f}"
                cells.append(cell)
            lines.append({"name": measure_name(measure, utility), "cells": cells})
        found = {"utility": utility, "pair": pair, "split": own[0]["split"], "lines": lines}
        found["file"] = files[pair, utility, own[0]["split"]]
        tables.append(found | {"sentences": own[0]["sentences"]})
    return tables


def _difference(row: Row) -> str:
    """The difference from standard MBR with its 90% interval, and whether that is inside the margin."""
    if row["difference"] is None:
        return ""
    text = with_interval(row["difference"], row["low_90"], row["high_90"])
    if row["margin"] is None:
        return text
    return f"{text}, {'inside' if row['inside_margin'] else 'not inside'} ±{row['margin']:.3g}"


# Recorded races: every step of a few sentences, for the race viewer

RECORDED_ALPHAS = (0.99, 0.9, 0.8)
RECORDED = 12  # sentences of a file


def record_races(
    tables: Sequence[Table],
    records: Sequence[Record],
    name: str,
    schedule: tuple[int, ...],
    *,
    seed: int = 0,
    count: int = RECORDED,
) -> list[dict[str, Any]]:
    """`count` sentences spread evenly over the file, each raced with every alpha on the draws of trial 0."""
    return [
        record_sentence(tables[index], records[index], name, schedule, seed)
        for index in spread_evenly(len(tables), count)
    ]


def spread_evenly(sentences: int, count: int) -> list[int]:
    """The indices of `count` sentences, or of all if there are fewer."""
    chosen: list[int] = np.unique(np.linspace(0, sentences - 1, min(count, sentences)).round().astype(int)).tolist()
    return chosen


def record_sentence(
    table: Table, record: Record, name: str, schedule: tuple[int, ...], run_seed: int
) -> dict[str, Any]:
    """The races of one sentence; `name` and `schedule` are the utility's."""
    seed = key(run_seed, 0, "trial")
    replay = Replay([table], name=name, schedule=schedule)
    races = {}
    for alpha in RECORDED_ALPHAS:
        rule = Confidence(alpha)
        drawn = sample(table, seed, schedule[-1])
        recorder = RaceRecorder(rule)
        race = Race(prune=rule, schedule=schedule, shuffle=False, seed=seed)
        [answer] = decode_corpus([drawn], utility=replay, race=race, watch=recorder)
        assert answer.index is not None
        found = measures_of(table, answer.index)
        races[f"{alpha:g}"] = {
            "steps": [_shown(step) for step in recorder.steps],
            "answer": answer.index,
            "utility_calls": answer.utility_calls,
            "rank": round(1 / found["rr"]),
        }
    return {
        "source": record.source,
        "reference": record.reference,
        "hypotheses": table.hypotheses,
        "winner": int(np.argmax(table.expected)),
        "races": races,
    }


def save_races(outcomes: Path, about: Mapping[str, Any], sentences: Sequence[Mapping[str, Any]]) -> None:
    """Save recorded races next to the file of outcomes that they belong to, which `about` describes."""
    header = {"pair": about["name"], "split": about["split"], "utility": about["label"], "scale": about["scale"]}
    text = json.dumps(header | {"sentences": sentences}, ensure_ascii=False, separators=(",", ":"))
    outcomes.parent.mkdir(parents=True, exist_ok=True)
    packed = gzip.compress(text.encode("utf-8", "surrogatepass"), mtime=0)  # the same races give the same bytes
    replace_file(outcomes.with_suffix(".races.json.gz"), packed, shared=True)


def load_races(folder: Path) -> list[dict[str, Any]]:
    """What `save_races` saved in a folder, a dictionary per candidate file and utility."""
    return [json.loads(gzip.decompress(path.read_bytes())) for path in sorted(folder.glob("*.races.json.gz"))]


def _shown(step: RecordedStep) -> dict[str, Any]:
    """A step as the race viewer reads it: numbers rounded to what can be seen."""
    assert step.win_rates is not None
    return {
        "pseudo_references": step.pseudo_references,
        "alive": step.alive.tolist(),
        "means": [round(float(mean), 5) for mean in step.means],
        "win_rates": [round(float(rate), 3) for rate in step.win_rates],
        "kept": np.flatnonzero(step.kept).tolist(),
    }
