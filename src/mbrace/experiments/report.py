"""report.html, one page with recommendations, recorded races and charts that needs no network; and RESULTS.md.

Both show the same tables (`PageTable`). Charts are data (`figures.py`) that `page/charts.js` draws; `page/viewer.js`
steps through recorded races, `page/report.js` follows the page's controls and its address. The words of RESULTS.md are
those of page/results.md.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from mbrace.errors import counted, require
from mbrace.experiments.claims import TABLE_2
from mbrace.experiments.figures import MEASURES, SPLITS, charts, describe
from mbrace.experiments.studies import CHANGES, MIN_SENTENCES, RULE, Row, grouped
from mbrace.experiments.tables import exhausted_note, slug
from mbrace.experiments.trials import SCORE_BY

NAMES = {
    "score": "Score",
    "accuracy": "Accuracy",
    "rr": "RR",
    "strict_accuracy": "Accuracy, ties wrong",
    "strict_rr": "RR, ties in order",
    "same": "Same prediction",
    "tied": "Same or tied",
    "pseudo_references": "# pseudo-refs",
    "utility_calls": "# utility calls",
    "pairs_scored": "# pairs scored",
}
NARROW = 0.25  # of a margin
SETTINGS = {"beta=0": "β = 0", "alpha=0.99": "α = 0.99", "alpha=0.9": "α = 0.9"}
# Headings and row names of tables that the page explains, and the term of each.
TERM_OF = {
    "RR": "rr",
    "reciprocal rank": "rr",
    "Accuracy": "accuracy",
    "exact accuracy": "accuracy",
    "score by the decoding metric": "score",
    "# utility calls": "calls",
    "β = 0": "beta",
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
    shown = context(about, rows, notes) | {"races": pack_races(races)}
    data = {"choices": list(dict.fromkeys((row["pair"], row["utility"]) for row in rows["tradeoff"]))}
    html = jinja2.Environment(autoescape=True, **options).from_string(texts["report.html"])
    written = html.render(
        shown,
        contents=contents(shown),
        css=texts["report.css"],
        script="\n".join(texts[name] for name in ("charts.js", "viewer.js", "report.js")),
        data=_json(data | {"charts": charts(rows)}).replace("<", "\\u003c"),  # safe inside a script element
    )
    (out / "report.html").write_text(written, encoding="utf-8")
    words = jinja2.Environment(autoescape=False, **options).from_string(texts["results.md"])
    pictures = {
        study: [(utility, name) for utility in shown["utilities"] if (name := f"{study}.{slug(utility)}.svg") in drawn]
        for study in ("tradeoff", "survivors", "false_pruning")
    }
    summary = words.render(shown, pictures=pictures, **markdown_tables(shown, rows))
    (out / "RESULTS.md").write_text(summary.rstrip() + "\n", encoding="utf-8")


def context(about: Sequence[Mapping[str, Any]], rows: Mapping[str, Sequence[Row]], notes: str) -> dict[str, Any]:
    """What both pages show, except charts and races."""
    files = {(one["name"], one["label"], one["split"]): one["file"] for one in about}
    utilities = list(dict.fromkeys(one["label"] for one in about))
    pairs = list(dict.fromkeys(one["name"] for one in about))
    exhausted = [f"`{one['file']}`, {one['label']}: {note}." for one in about if (note := exhausted_note(one, 20))]
    return {
        "title": " and ".join(pairs) if len(pairs) < 3 else f"{', '.join(pairs[:-1])} and {pairs[-1]}",
        "about": about,
        "files": list({one["file"]: one for one in about}.values()),
        "pairs": pairs,
        "utilities": utilities,
        "cards": cards(rows["recommended"]),
        "min_sentences": MIN_SENTENCES,
        "measures": {name: what for name, what in CHANGES.items() if any(name in row for row in rows["recommended"])},
        "rule": RULE,
        "scored": any("score" in row for row in rows["tradeoff"]),
        "against": alpha_against_beta(rows["alpha_over_beta"], files),
        "tables": test_tables(rows["test_table"], files),
        "exhausted": exhausted,
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
        "markdown": markdown,
        "signatures": list(dict.fromkeys((one["label"], one["utility"]) for one in about)),
    }


def contents(context: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The ids and titles of the sections that the page has, in order."""
    found = [("recommended", "Recommended")]
    found += [("viewer", "Watch a race")] if context["races"] else []
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


def _json(value: Any) -> str:
    return json.dumps(finite(value), ensure_ascii=False, separators=(",", ":"))


def pack_races(races: Sequence[Mapping[str, Any]]) -> str:
    """The recorded races as base64 of gzip, which the browser unpacks; "" if there are none."""
    kept = [file for file in races if file["sentences"]]
    return base64.b64encode(gzip.compress(_json(kept).encode("utf-8", "replace"), mtime=0)).decode() if kept else ""


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


# Numbers as text


def format_value(measure: str, value: float | None) -> str:
    """A number; scores have three decimals, so that rounding neither makes nor hides a difference."""
    if value is None or math.isnan(value):
        return ""
    if measure in ("utility_calls", "pairs_scored"):
        return f"{value:,.0f}"
    return f"{value:.{1 if measure == 'pseudo_references' else 3}f}"


def format_p(p: float | None) -> str:
    """A p-value with three decimals; "" if nothing was tested."""
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def signed(value: float, low: float, high: float) -> str:
    """A difference and its interval, such as `+0.012 (-0.003 to +0.027)`; what rounds to zero is +0.000."""
    one, *ends = (f"{number:+.3f}".replace("-0.000", "+0.000") for number in (value, low, high))
    return f"{one} ({' to '.join(ends)})"


def measure_name(measure: str, utility: str) -> str:
    """What a measure is called in tables; names of scores say whether their metric decoded."""
    if measure == "score":
        return f"Score by {utility} (decoding metric)"
    if measure.startswith(SCORE_BY):
        return f"Score by {measure.removeprefix(SCORE_BY)} (another metric)"
    return NAMES[measure]


# The recommended race


def cards(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """For each file and utility: the cells of standard MBR, of the default race and of the recommended one."""
    found = []
    for (pair, utility), own in grouped(rows, "pair", "utility").items():
        by_kind = {row["kind"]: row for row in own}
        card = {"pair": pair, "utility": utility, "described": describe(utility), "race": None}
        card |= {name: own[0][name] for name in ("file", "sentences", "r_star")}
        card["used"] = int(by_kind["standard"]["schedule"])
        card["all"] = int(by_kind["default"]["schedule"].split()[-1]) if "measured_with" in own[0] else None
        card["standard_mbr"] = standard_mbr(own[0])
        best = by_kind.get("recommended")
        if best is not None and best["alpha"] is not None:
            race = {name: f"{best[name]:g}" for name in ("alpha", "regret")}
            card["race"] = race | {"schedule": best["schedule"].replace(" ", ", ")}
        found.append(card | {kind: recommendation_cells(row) for kind, row in by_kind.items()})
    return found


def standard_mbr(row: Row) -> str:
    """What a row is compared with."""
    return "standard MBR" + (f" with {row['measured_with']}" if "measured_with" in row else "")


def recommendation_cells(row: Row) -> dict[str, str]:
    """The cells of a row as words: options of `mbrace decode`, calls, saving, differences from standard MBR."""
    if row["alpha"] is None:
        options = "--prune none"
    else:
        schedule = row["schedule"].replace(" ", ",")
        options = f"--alpha {row['alpha']:g} --schedule {schedule} --regret {row['regret']:g}"
        options += f" --forecast {row['forecast']:g}" if "forecast" in row else ""
        options += " --cover" if "cover" in row else ""
    command = ["mbrace decode", shlex.quote(row["file"]), "-o decoded.jsonl", row["utility_options"], options]
    cells = {"options": options, "command": " ".join(filter(None, command)), "calls": f"{row['utility_calls']:,.0f}"}
    cells["saves"] = f"{row['saves']:.1f}x ({row['saves_low']:.1f} to {row['saves_high']:.1f})"
    for name in CHANGES:
        if name in row and row["kind"] != "standard":
            value, low, high = row[name], row[f"{name}_low"], row[f"{name}_high"]
            # a loss is shown as a difference, so that negative is worse everywhere
            cells[name] = signed(-value, -high, -low) if name == "lost" else signed(value, low, high)
    return cells


# Tables of both pages


@dataclass(frozen=True)
class PageTable:
    """A table of one pair and utility. A row has a name and cells; a cell has a number, then lines about it."""

    pair: str
    utility: str
    caption: str
    headings: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Sequence[str]]]]

    @property
    def markdown(self) -> str:
        """The table in Markdown."""
        lines = [
            (name, *("<br>".join((f"**{cell[0]}**", *cell[1:])) if cell else "" for cell in cells))
            for name, cells in self.rows
        ]
        return table(self.headings, lines)


def alpha_against_beta(rows: Sequence[Row], files: Mapping[tuple[str, str, str], str]) -> list[PageTable]:
    """For each pair and utility: a line per measure, a cell per alpha with the difference and its interval."""
    shown = []
    for (pair, utility, split), own in grouped(rows, "pair", "utility", "split").items():
        alphas = sorted({row["alpha"] for row in own})
        lines = []
        for (measure,), measured in grouped(own, "measure").items():
            found = {
                row["alpha"]: (f"{row['difference']:+.3f}", f"{row['low']:+.3f} to {row['high']:+.3f}")
                for row in measured
            }
            lines.append((MEASURES[measure], [found.get(alpha, ()) for alpha in alphas]))
        headings = ["difference", *(f"α = {alpha:g}" for alpha in alphas)]
        shown.append(PageTable(pair, utility, f"{files[pair, utility, split]}, {utility}", headings, lines))
    return shown


def test_tables(rows: Sequence[Row], files: Mapping[tuple[str, str, str], str]) -> list[PageTable]:
    """Table 1 for each utility and pair: our numbers, what is known about each, and the paper's."""
    shown = []
    for (utility, pair, split), own in grouped(rows, "utility", "pair", "split").items():
        lines = []
        for (measure,), measured in grouped(own, "measure").items():
            by_setting = {row["setting"]: row for row in measured}
            if "beta=0" in by_setting:  # others say what is the same as standard MBR
                cells = [_test_cell(by_setting[setting]) for setting in SETTINGS]
                lines.append((measure_name(measure, utility), cells))
        count = counted(own[0]["sentences"], "sentence")
        caption = f"{files[pair, utility, split]} ({SPLITS[split]}), {utility}, {count}"
        shown.append(PageTable(pair, utility, caption, ["measure", *SETTINGS.values()], lines))
    return shown


def _test_cell(row: Row) -> list[str]:
    """A number, its intervals over sentences and over trials, its difference from standard MBR, and the paper's."""
    found = [format_value(row["measure"], row["value"])]
    for kind in ("sentences", "trials"):
        low, high = (format_value(row["measure"], row[f"{kind}_{end}"]) for end in ("low", "high"))
        found += [f"{low} to {high}"] if low else []  # a single trial has none
    if row["difference"] is not None:
        found.append(signed(row["difference"], row["low_90"], row["high_90"]))
        p = format_p(row["p_randomisation"])
        tested = f"p {p if p[0] == '<' else f'= {p}'}"
        if row["margin"] is not None:
            tested = f"{'inside' if row['inside_margin'] else 'not inside'} ±{row['margin']:.3g}, {tested}"
        found.append(tested)
    if row["paper"] is not None:
        found.append(f"the paper {row['paper']:,}")
    return found


def run_time_tables(rows: Sequence[Row]) -> list[PageTable]:
    """Table 2 for each utility and pair: a line per phase, a cell per method with our seconds and the paper's."""
    shown = []
    for (utility, pair), own in grouped(rows, "utility", "pair").items():
        seconds = {(row["method"], row["phase"]): f"{row['seconds']:.2f}" for row in own}
        lines = []
        for phase in TABLE_2["racing"]:
            cells = [
                [seconds.get((method, phase), ""), f"the paper {of_paper[phase]:.2f}"] if phase in of_paper else []
                for method, of_paper in TABLE_2.items()
            ]
            lines.append((phase, cells))
        one = own[0]
        counts = f"{counted(one['sentences'], 'sentence')}, mean of {counted(one['trials'], 'trial')}"
        way = f"{one['window']} sentences at a time, pseudo-references drawn {one['draw']}"
        caption = f"{pair}, {describe(utility)}: {counts}, {one['device']}; {way}"
        shown.append(PageTable(pair, utility, caption, ["seconds", *TABLE_2], lines))
    return shown


# Tables of RESULTS.md alone


def table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    rule = [":--", *["--:"] * (len(headings) - 1)]
    shown = [[cell.replace("|", "\\|") for cell in line] for line in lines]  # a name of a file may have a |
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (headings, rule, *shown))


def markdown_tables(shown: Mapping[str, Any], rows: Mapping[str, Sequence[Row]]) -> dict[str, str | list[str]]:
    """Recommended races, claims, every row of each test set, and the candidates."""
    measures = shown["measures"]
    recommended = []
    for card in shown["cards"]:
        cells = card.get("recommended", card["default"])
        options = f"`{cells['options']}`"
        if "recommended" not in card:
            options = f"none: fewer than {MIN_SENTENCES} sentences; the default is {options}"
        line = [f"{card['pair']}, {card['utility']}", options, cells["saves"], card["default"]["saves"]]
        recommended.append([*line, *(cells.get(name, "") for name in measures)])
    claims = []
    for row in shown["claims"]:
        verdict = row["verdict"] if row["holds"] else f"**{row['verdict']}**"
        p_values = format_p(row["p"]), format_p(row.get("p_holm"))
        claims.append((row["claim"], row["utility"], row["pair"], row["found"], verdict, *p_values))
    candidates = []
    for one in shown["about"]:
        counts = (f"{one[name]:g}" for name in ("sentences", "hypotheses", "pseudo_references"))
        seconds = (f"{one['seconds'][name]:g} s" for name in ("tables", "races"))
        candidates.append(
            (f"`{one['file']}`", one["label"], *counts, f"{one['distinct']:.0%}", f"{one['trials']}", *seconds)
        )
    headings = ("file", "utility", "sentences", "hypotheses", "R*", "distinct in R*", "trials", "tables", "races")
    return {
        "recommended": table(
            ("", "options of `mbrace decode`", "fewer calls", "the default's", *measures.values()), recommended
        ),
        "claims_table": table(("claim", "utility", "pair", "found", "verdict", "p", "p, corrected"), claims),
        "systems": [systems_table(own) for own in grouped(rows["test_table"], "utility", "pair", "split").values()],
        "candidates": table(headings, candidates),
    }


def systems_table(rows: Sequence[Row]) -> str:
    """Every setting and system of a test set: changes of scores as shares of their margins, and what was matched.

    The last columns: for how many of the metrics the 90% interval of the change lies inside the margin, and inside a
    quarter of it.
    """
    scores = list(dict.fromkeys(row["measure"] for row in rows if row["measure"].startswith("score")))
    others = [name for name in NAMES if name != "score" and any(row["measure"] == name for row in rows)]
    lines = []
    for (system,), own in grouped(rows, "setting").items():
        found = {row["measure"]: row for row in own}
        cells = [_change(found[name]) if name in found else "" for name in scores]
        cells += [format_value(name, found[name]["value"]) if name in found else "" for name in others]
        judged = [found[name] for name in scores if name in found and found[name]["margin"]]
        for share in (1, NARROW):
            inside = sum(max(-row["low_90"], row["high_90"]) < share * row["margin"] for row in judged)
            cells.append(f"{inside} of {len(judged)}" if judged else "")
        lines.append((system, *cells))
    metrics = [name.removeprefix(SCORE_BY) if name.startswith(SCORE_BY) else rows[0]["utility"] for name in scores]
    inside_heads = ("inside the margin", "inside a quarter")
    return table(("", *metrics, *(NAMES[name] for name in others), *inside_heads), lines)


def _change(row: Row) -> str:
    """The score of standard MBR; of others the difference from it and, where there is a margin, its share of that."""
    if row["difference"] is None:
        return format_value(row["measure"], row["value"])
    share = f" ({abs(row['difference']) / row['margin']:.0%})" if row["margin"] else ""
    return f"{row['difference']:+.3f}{share}"
