"""report.html: one page with interactive charts and recorded races, which needs no network.

The charts are Vega-Lite, written with Altair; Vega's JavaScript is part of the page. The page's controls (pair,
utility, alpha, measure) are parameters of the charts; `page/report.js` sets them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from mbrace.errors import require
from mbrace.experiments import figures, paper, points
from mbrace.experiments.sections import Section
from mbrace.experiments.studies import Row
from mbrace.experiments.summary import SETTINGS, SPLITS, interval, measure_name, shown, shown_paper

ALPHA_DOMAIN = list(figures.ALPHA_COLOURS)
ALPHA_RANGE = list(figures.ALPHA_COLOURS.values())


def write(
    path: Path,
    about: Sequence[Mapping[str, Any]],
    rows: Mapping[str, Sequence[Row]],
    races: Sequence[Mapping[str, Any]],
    added: Sequence[Section] = (),
) -> None:
    """Write the page from the rows of all studies, the recorded races and the sections of other studies."""
    jinja2 = require("jinja2", extra="experiments")
    page = resources.files("mbrace.experiments") / "page"
    texts = {name: (page / name).read_text(encoding="utf-8") for name in ("report.html", "report.css", "report.js")}
    template = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        texts["report.html"]
    )
    specs = charts(rows) | section_charts(added)
    path.write_text(
        template.render(
            css=texts["report.css"],
            script=texts["report.js"],
            vega=_bundle(),
            data=_embedded({"charts": specs, "races": races}),
            charts=list(specs),
            about=about,
            tables=test_tables(rows["test_table"]),
            claims=sorted(rows["claims"], key=lambda row: row["claim"]),
            recommended=[row for row in rows["schedules"] if row["recommended"]],
            runtimes=run_time_tables(rows["runtimes"]),
            signatures=list(dict.fromkeys((one["label"], one["utility"]) for one in about)),
            settings=SETTINGS,
            splits=SPLITS,
            pairs=list(dict.fromkeys(one["name"] for one in about)),
            utilities=list(dict.fromkeys(one["label"] for one in about)),
            alphas=ALPHA_DOMAIN,
            added=[_shown_section(section, path.parent) for section in added],
            scored=any("score" in row for row in rows["tradeoff"]),
        ),
        encoding="utf-8",
    )


@lru_cache
def _bundle() -> str:
    """Vega, Vega-Lite and vega-embed in the version Altair's charts are written for."""
    altair = require("altair", extra="experiments")
    convert = require("vl_convert", extra="experiments")
    version = ".".join(altair.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    code: str = convert.javascript_bundle(vl_version=version)
    return code.replace("</script", "<\\/script")


def _embedded(value: Any) -> str:
    """JSON that is safe inside a script element."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _shown_section(section: Section, results: Path) -> dict[str, Any]:
    """A section as the page shows it: Markdown as HTML, a picture as part of the page."""
    shown: dict[str, Any] = {"name": section.name, "title": section.title, "text": markdown(section.text)}
    shown |= {"headings": section.headings, "rows": section.rows, "charts": [], "picture": None}
    if section.figure:
        ids = [f"{section.name}-{number}" for number in range(len(section.figure.panels))]
        shown |= {"charts": ids, "describes": section.figure.describes}
    elif section.picture:
        kind = {".svg": "image/svg+xml"}.get(Path(section.picture).suffix, "image/png")
        data = base64.b64encode((results / section.picture).read_bytes()).decode()
        shown |= {"picture": f"data:{kind};base64,{data}", "describes": section.picture_describes}
    return shown


def section_charts(added: Sequence[Section]) -> dict[str, Any]:
    """Vega-Lite specifications of the figures of sections, a chart per panel."""
    alt = require("altair", extra="experiments")
    return {
        f"{section.name}-{number}": _finished(chart)
        for section in added
        if section.figure
        for number, chart in enumerate(points.specs(alt, section.figure))
    }


def _finished(chart: Any) -> dict[str, Any]:
    spec: dict[str, Any] = chart.properties(width="container", height=300).configure(**_theme()).to_dict()
    return spec


def markdown(text: str) -> str:
    """Markdown as HTML; markup in it stays text."""
    module = require("markdown_it", extra="experiments")
    html: str = module.MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    return html


def test_tables(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Table 1 for each utility and pair: lines of cells with our number, both intervals and the paper's number."""
    tables = []
    for utility, pair in dict.fromkeys((row["utility"], row["pair"]) for row in rows):
        own = [row for row in rows if (row["utility"], row["pair"]) == (utility, pair)]
        lines = []
        for measure in dict.fromkeys(row["measure"] for row in own):
            cells = []
            for setting in SETTINGS:
                row = next(r for r in own if r["measure"] == measure and r["setting"] == setting)
                cell = {"value": shown(measure, row["value"]), "paper": shown_paper(measure, row["paper"])}
                for kind in ("sentences", "trials"):
                    cell[kind] = interval(row, kind, " to ")
                cell["p"] = "" if row["p_randomisation"] is None else f"{row['p_randomisation']:.3f}"
                cells.append(cell)
            lines.append({"name": measure_name(measure, utility), "cells": cells})
        metric = paper.metric_of(utility) if pair in paper.PAIRS else None
        found = {"utility": utility, "pair": pair, "split": own[0]["split"], "lines": lines, "paper": metric}
        tables.append(found | {"sentences": own[0]["sentences"]})
    return tables


def run_time_tables(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Table 2 for each utility and pair, with the paper's numbers."""
    tables = []
    for utility, pair in dict.fromkeys((row["utility"], row["pair"]) for row in rows):
        own = {(r["method"], r["phase"]): r for r in rows if (r["utility"], r["pair"]) == (utility, pair)}
        lines = []
        for phase in paper.TABLE_2_WITH_TOTALS["racing"]:
            cells = []
            for method, seconds in paper.TABLE_2_WITH_TOTALS.items():
                theirs, ours = seconds.get(phase), own.get((method, phase))
                cells.append(
                    {"value": f"{ours['seconds']:.2f}" if ours else "", "paper": f"{theirs:.2f}" if theirs else ""}
                )
            lines.append({"name": phase, "cells": cells})
        tables.append(
            {"utility": utility, "pair": pair, "lines": lines, "methods": list(paper.TABLE_2)}
            | {name: next(iter(own.values()))[name] for name in ("sentences", "trials", "device")}
        )
    return tables


def charts(rows: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """Vega-Lite specifications, keyed by the id of the element they are drawn in."""
    alt = require("altair", extra="experiments")
    makers = {"false_pruning": false_pruning, "tradeoff": tradeoff, "survivors": survivors, "schedules": schedules}
    specs = {}
    for name, maker in makers.items():
        if not rows[name]:  # with fewer than four pseudo-references in R* there is no false pruning to show
            continue
        chart = maker(alt, [_lean(row) for row in rows[name]])
        specs[name] = _finished(chart)
    return specs


def _theme() -> dict[str, Any]:
    label = {"labelColor": "#555", "titleColor": "#333", "titleFontWeight": "normal", "gridColor": "#e8e8e8"}
    font = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
    return {
        "axis": label | {"domainColor": "#999", "labelFontSize": 12, "titleFontSize": 12},
        "legend": {"labelFontSize": 12, "titleFontSize": 12, "orient": "top", "title": None},
        "view": {"stroke": None},
        "background": "transparent",
        "font": font,
    }


def _lean(row: Row) -> Row:
    """The row with floats cut to five digits, enough for display."""
    return {name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in row.items()}


def _chosen(alt: Any, rows: Sequence[Row], *names: str) -> tuple[Any, list[Any]]:
    """A chart of the rows of the chosen pair and utility, and its parameters, which the page sets."""
    first = {"pair": rows[0]["pair"], "utility": rows[0]["utility"], "alpha": "all", "measure": "accuracy"}
    parameters = [alt.param(name=name, value=first[name]) for name in names]
    chart = alt.Chart(alt.Data(values=list(rows)))
    for name in set(names) & {"pair", "utility"}:
        chart = chart.transform_filter(f"datum.{name} == {name}")
    return chart, parameters


def _alphas(alt: Any) -> dict[str, Any]:
    """Colour by alpha; alphas that are not chosen are faded."""
    scale = alt.Scale(domain=ALPHA_DOMAIN, range=ALPHA_RANGE)
    return {
        "color": alt.Color("alpha:O", scale=scale, legend=alt.Legend(title="alpha", orient="top", symbolOpacity=1)),
        "opacity": alt.condition("alpha == 'all' || datum.alpha == alpha", alt.value(1), alt.value(0.12)),
    }


def _calls(alt: Any) -> Any:
    """The x axis of utility calls."""
    scale, axis = alt.Scale(type="log", nice=False), alt.Axis(format="~s", tickCount=4)
    return alt.X("utility_calls:Q", title="utility calls per sentence (log scale)", scale=scale, axis=axis)


def false_pruning(alt: Any, rows: Sequence[Row]) -> Any:
    """Figure 1."""
    base, parameters = _chosen(alt, rows, "pair", "utility", "alpha")
    x = alt.X("pseudo_references:Q", title="pseudo-references |R|", scale=alt.Scale(type="log", base=2)).axis(
        values=[4, 8, 16, 32, 64]
    )
    tooltip = [
        alt.Tooltip("alpha:O"),
        alt.Tooltip("pseudo_references:Q", title="|R|"),
        alt.Tooltip("rate:Q", title="false pruning rate", format=".3f"),
        alt.Tooltip("low:Q", title="95% from", format=".3f"),
        alt.Tooltip("high:Q", title="to", format=".3f"),
    ]
    colours = _alphas(alt)
    band = base.mark_area().encode(
        x=x, y=alt.Y("low:Q", title="false pruning rate"), y2="high:Q", color=colours["color"],
        opacity=alt.condition("datum.alpha == alpha", alt.value(0.18), alt.value(0)),
    )  # fmt: skip
    line = base.mark_line(point={"size": 45}).encode(
        x=x, y=alt.Y("rate:Q", title="false pruning rate"), tooltip=tooltip, **colours
    )
    return (band + line).add_params(*parameters)


def tradeoff(alt: Any, rows: Sequence[Row]) -> Any:
    """Figure 2, one measure at a time."""
    base, parameters = _chosen(alt, rows, "pair", "utility", "alpha", "measure")
    base = base.transform_calculate(value_="datum[measure]", name="datum.rule + ' = ' + datum.value")
    x = _calls(alt)
    y = alt.Y("value_:Q", title=None, scale=alt.Scale(zero=False))
    tooltip = [alt.Tooltip("name:N", title="setting"), alt.Tooltip("utility_calls:Q", format=",.0f")]
    tooltip += [alt.Tooltip("pseudo_references:Q", title="pseudo-references", format=".1f")]
    for name, digits in (("score", ".2f"), ("accuracy", ".3f"), ("rr", ".3f")):
        if any(name in row for row in rows):
            tooltip.append(alt.Tooltip(f"{name}:Q", title=figures.TITLES[name].lower(), format=digits))
    scale = alt.Scale(domain=["alpha", "beta"], range=[figures.ALPHA, figures.BETA])
    colour = alt.Color("rule:N", scale=scale, legend=alt.Legend(title="pruning function", orient="top"))
    pruning = base.transform_filter("datum.value > 0")
    line = pruning.mark_line(strokeWidth=2).encode(x=x, y=y, color=colour)
    shapes = alt.Shape("rule:N", scale=alt.Scale(domain=["alpha", "beta"], range=["circle", "square"]))
    chosen = alt.condition(
        "datum.rule == 'alpha' && (alpha == 'all' || datum.value == alpha)", alt.value(110), alt.value(45)
    )
    points = pruning.mark_point(filled=True, opacity=1).encode(
        x=x, y=y, color=colour, shape=shapes, size=chosen, tooltip=tooltip
    )
    standard = base.transform_filter("datum.value == 0").mark_rule(strokeDash=[5, 4], color=figures.STANDARD)
    return (standard.encode(y=y, tooltip=tooltip) + line + points).add_params(*parameters)


def survivors(alt: Any, rows: Sequence[Row]) -> Any:
    """Hypotheses left after each time step: bars are means, lines span the middle half."""
    base, parameters = _chosen(alt, rows, "pair", "utility", "alpha")
    base = base.transform_calculate(floor="0.8")
    scale = alt.Scale(type="log", base=2, domain=[0.8, 256], clamp=True)
    axis = alt.Axis(values=[1, 2, 4, 8, 16, 32, 64, 128, 256], format="d")
    x = alt.X("pseudo_references:O", title="pseudo-references at the time step", axis=alt.Axis(labelAngle=0))
    offset = alt.XOffset("alpha:O", scale=alt.Scale(domain=ALPHA_DOMAIN))
    tooltip = [alt.Tooltip("alpha:O"), alt.Tooltip("pseudo_references:O", title="|R|")]
    tooltip += [alt.Tooltip(f"{name}:Q", format=".1f") for name in ("mean", "q25", "median", "q75")]
    y = alt.Y("mean:Q", title="hypotheses left (log scale)", scale=scale, axis=axis)
    bars = base.mark_bar().encode(x=x, xOffset=offset, y=y, y2="floor:Q", tooltip=tooltip, **_alphas(alt))
    middle = base.mark_rule(strokeWidth=1.5, color="#111").encode(
        x=x, xOffset=offset, y=alt.Y("q25:Q", scale=scale), y2="q75:Q", opacity=_alphas(alt)["opacity"]
    )
    return (bars + middle).add_params(*parameters)


def schedules(alt: Any, rows: Sequence[Row]) -> Any:
    """First size and growth factor: reciprocal rank against utility calls, over all pairs of the utility."""
    base, parameters = _chosen(alt, rows, "utility", "alpha")
    base = base.transform_filter("alpha == 'all' ? datum.alpha == 0.99 : (datum.alpha == alpha)")
    base = base.transform_calculate(kind="datum.recommended ? 'recommended' : datum.own ? 'own' : ''")
    x = _calls(alt)
    y = alt.Y("rr:Q", title="reciprocal rank", scale=alt.Scale(zero=False))
    scale = alt.Scale(domain=list(figures.GROWTH_COLOURS), range=list(figures.GROWTH_COLOURS.values()))
    colour = alt.Color("growth:O", scale=scale, legend=alt.Legend(title="growth factor", orient="top"))
    tooltip = [
        alt.Tooltip("schedule:N"),
        alt.Tooltip("utility_calls:Q", format=",.0f"),
        alt.Tooltip("steps:Q", format=".1f"),
    ]
    tooltip += [alt.Tooltip("rr:Q", title="reciprocal rank", format=".4f"), alt.Tooltip("accuracy:Q", format=".3f")]
    tooltip += [
        alt.Tooltip("rr_low:Q", title="RR minus own, from", format="+.4f"),
        alt.Tooltip("rr_high:Q", title="to", format="+.4f"),
    ]
    line = base.mark_line(strokeWidth=1.5).encode(x=x, y=y, color=colour)
    points = base.mark_point(filled=True, size=70, opacity=1).encode(x=x, y=y, color=colour, tooltip=tooltip)
    names = base.mark_text(dy=15, fontSize=11).encode(x=x, y=y, text="first:N", color=colour)
    ring = (
        base.transform_filter("datum.kind != ''")
        .mark_point(size=320, strokeWidth=2.5)
        .encode(
            x=x,
            y=y,
            tooltip=tooltip,
            color=alt.condition("datum.recommended", alt.value(figures.ACCENT), alt.value(figures.STANDARD)),
        )
    )
    return (line + points + names + ring).add_params(*parameters)
