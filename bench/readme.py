"""Write what README.md, docs/benchmarks.md and their charts say about speed from the committed tables.

`python bench/readme.py` (no arguments, takes a second). Text between `<!-- NAME -->` and `<!-- end -->` is replaced.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from readme_gains import (
    RESULTS,
    ROOT,
    Gain,
    chrf_gain,
    comet_gain,
    cross_gains,
    factor,
    learned_gain,
    stored,
)

TEXTS = (
    ("beam", "256 beam hypotheses x 256 samples, 186 characters"),
    ("samples", "256 samples x 256 samples, 186 characters"),
    ("captions", "256 x 256 of more diverse text, 190 characters"),
)


def main() -> None:
    """Write all of them."""
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")


def written() -> dict[Path, str]:
    """The files, as they should be."""
    gains = [*reversed(cross_gains()), comet_gain(), learned_gain(), chrf_gain()]
    sections = {
        "peers": peers_sentences(),
        "gains": gains_table(gains),
        "kernel": kernel_table(),
        "comet": comet_table(),
        "fewer strings": fewer_strings_table(),
        "translating": translating_table(),
    }
    names = ("README.md", "docs/benchmarks.md")
    pages = {ROOT / name: (ROOT / name).read_text(encoding="utf-8") for name in names}
    for path, page in pages.items():
        for name, text in sections.items():
            if path.parent == ROOT / "docs":  # links of a page are from where it is
                text = text.replace("](docs/", "](").replace("](bench/", "](../bench/")
            pattern = re.compile(rf"<!-- {name} -->.*?<!-- end -->", re.DOTALL)
            page = pattern.sub(lambda _, name=name, text=text: f"<!-- {name} -->\n{text}\n<!-- end -->", page)
        pages[path] = page
    pictures = ROOT / "docs" / "pictures"
    return {**pages, pictures / "gains.svg": bars(gains), pictures / "peers.svg": peers_chart(stored("commands"))}


def peers_sentences() -> str:
    """The chart of whole commands, and what it shows."""
    found = stored("commands")
    seconds = {(row["metric"], row["who"]): row["seconds"] for row in found["rows"]}
    ours, theirs = seconds["chrF++", "mbrace"], seconds["chrF++", "mbrs (sacreBLEU)"]
    loop = seconds["chrF", "fastChrF, in a loop"] / seconds["chrF", "mbrace"]
    return (
        "![Seconds for the same work by mbrace, mbrs, fastChrF and comet-mbr](docs/pictures/peers.svg)\n\n"
        "`mbrace mbrs-decode` takes the options of `mbrs-decode` and writes the same lines, up to "
        "[ties](docs/migrating.md) ([table](bench/results/commands.md)). "
        f"It is {theirs / ours:,.0f} times as fast as mbrs with chrF++;\nwith chrF it is {loop:.1f} times as fast as a "
        "loop over fastChrF. COMET ([speed](bench/results/neural.md)) "
        "loads checkpoints from disk, runs on a CPU too, and works with NumPy 2 and transformers 5."
    )


def gains_table(gains: list[Gain]) -> str:
    """Calls and seconds."""
    lines = [
        "| utility | on | fewer utility calls | seconds for 100 sentences: unpruned | racing | times as fast |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for gain in gains:
        seconds = " | ".join(
            f"{value:,.{3 if value < 1 else 2 if value < 10 else 0}f}" for value in (gain.unpruned, gain.racing)
        )
        name = gain.utility.replace(" *", r" \*")
        lines.append(f"| {name} | {gain.machine} | {gain.fewer_calls:.1f}x | {seconds} | **{factor(gain.times)}** |")
    return "\n".join(lines)


def fewer_strings_table() -> str:
    """COMET-22's size with fewer strings."""
    if not (RESULTS / "fewer_strings.json").is_file():
        return "No table is committed; `python bench/fewer_strings.py` measures it on a GPU."
    found = stored("fewer_strings")
    rows, sentences = found["rows"], found["about"]["sentences"]
    first = rows["no pruning"]
    lines = [
        "| COMET-22's size, H200 | strings per sentence | calls per sentence | seconds for 100 | times as fast |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, row in rows.items():
        cells = [f"{row['strings']:.0f}", f"{row['calls']:,.0f}", f"{100 * row['seconds'] / sentences:.2f}"]
        lines.append(f"| {name} | {' | '.join(cells)} | **{factor(first['seconds'] / row['seconds'])}** |")
    return "\n".join(lines)


def translating_table() -> str:
    """From sources to answers with a base model."""
    if not (RESULTS / "translating.json").is_file():
        return "No table is committed; `python bench/translating.py --model base` measures it on a GPU."
    ways = stored("translating")["ways"]
    standard = next(row["seconds"] for name, row in ways.items() if name.startswith("standard"))
    lines = [
        "| translating 100 sentences, H200 | strings per sentence | seconds | standard MBR's time | beam 10's time |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, row in ways.items():
        strings = f"{row['strings']:.0f}" if "strings" in row else ""
        shares = f"{row['seconds'] / standard:.2f}x | {row['seconds'] / ways['beam 10']['seconds']:.1f}x"
        lines.append(f"| {name} | {strings} | {row['seconds']:.2f} | {shares} |")
    return "\n".join(lines)


def kernel_table() -> str:
    """Exact chrF++ against other packages, one core."""
    chrf = {(size["texts"], size["size"]): size for size in stored("chrf")["sizes"]}
    lines = [
        "| texts | mbrace, exact chrF++ (ms) | fastChrF pairwise, chrF (ms) "
        "| fastChrF aggregate, approximate chrF (ms) | sacreBLEU chrF++ (ms) |",
        "|---|---:|---:|---:|---:|",
    ]
    for texts, what in TEXTS:
        pairs = chrf[texts, 256]
        others = [
            f"{1000 * pairs[name]:,.0f} ({pairs[name] / pairs['ours']:,.0f}x)"
            for name in ("pairwise", "aggregate", "sacrebleu")
        ]
        lines.append(f"| {what} | {1000 * pairs['ours']:.1f} | {' | '.join(others)} |")
    return "\n".join(lines)


def comet_table() -> str:
    """Racing at COMET-22's size against more and more distant baselines."""
    ratios = {what: ratio for what, ratio, *_ in stored("neural")["ratios"]}
    rows = (
        (
            "our own race, one sentence at a time",
            "bfloat16",
            ratios["race: 64 sentences racing / one at a time, both pruned"],
        ),
        ("standard MBR the paper's way", "bfloat16", ratios["race, equal precision: both bfloat16"]),
        (
            "standard MBR the paper's way",
            "float32 with TF32, both",
            ratios["race, equal precision: both float32 with TF32"],
        ),
        ("standard MBR the paper's way", "float32, both", ratios["race, equal precision: both float32"]),
        (
            "standard MBR the paper's way, in float32",
            "ours in bfloat16",
            ratios["race: mbrace bfloat16 / standard MBR float32"],
        ),
    )
    lines = ["| 64 sentences racing, against | precision | times as fast |", "|---|---|---:|"]
    return "\n".join([*lines, *(f"| {what} | {precision} | {factor(ratio)} |" for what, precision, ratio in rows)])


STYLE = (
    "<style>",
    ":root { --ink: #1d2733; --quiet: #5d6b7a; --bar: #0b7a75; --other: #a3afbb; --line: #c2410c; --paper: #ffffff; }",
    "@media (prefers-color-scheme: dark) {",
    ":root { --ink: #e8edf2; --quiet: #9fb0c0; --bar: #2fb8ae; --other: #55636f; --line: #fb923c; --paper: #12181f }}",
    'text { font: 16px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: var(--ink); }',
    ".quiet { fill: var(--quiet); font-size: 15px } .title { font-size: 18px } .title, .strong { font-weight: 600 }",
    "</style>",
)


def picture(width: int, height: int, title: str, parts: list[str]) -> str:
    """A drawing whose colours follow the reader's scheme."""
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{title}">',
        *STYLE,
        f'<rect width="{width}" height="{height}" rx="10" style="fill: var(--paper)"/>',
        f'<text class="title" x="20" y="34">{title}</text>',
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def peers_chart(found: dict[str, Any]) -> str:
    """Seconds of the same command by mbrace and others (commands.json of bench/results); below, those of encoding for
    COMET (neural.json)."""
    neural = stored("neural")
    strings = neural["about"]["strings"]
    rates = {row["what"]: row["rate"] for row in neural["rows"] if row["section"] == "embedding"}
    encoding = [
        {"metric": "COMET", "who": who, "seconds": strings / rates[what]}
        for who, what in (
            ("mbrace", "mbrace's stream, float16"),
            ("comet-mbr's loop", "comet-mbr's loop, batch 32, float16"),
        )
    ]
    same = all(row.get("same", found["sentences"]) == found["sentences"] for row in found["rows"])
    machine = ", ".join(found["machine"].removeprefix("Machine: ").split(", ")[:2])
    device = neural["about"]["device"].removeprefix("NVIDIA ")
    width, y = 680, 34
    longest = max(row["seconds"] for row in [*found["rows"], *encoding])
    title = f"Seconds for {found['sentences']} sentences with {found['samples']} samples each"
    parts: list[str] = []
    for heading, rows, note in (
        (
            "",
            found["rows"],
            f"Standard MBR from file to file, {machine}.{' All write the same lines.' if same else ''}",
        ),
        (f"Seconds to encode {strings:,} strings", encoding, f"Random weights of COMET-22's shape, float16, {device}."),
    ):
        parts += [f'<text class="title" x="20" y="{y}">{heading}</text>'] if heading else []
        y += 22
        for number, row in enumerate(rows):
            first = number == 0 or row["metric"] != rows[number - 1]["metric"]
            y += 10 if first and number else 0
            parts += [f'<text x="20" y="{y + 19}" class="strong">{row["metric"]}</text>'] if first else []
            parts += peers_bar(row, y, width, longest)
            y += 30
        parts.append(f'<text class="quiet" x="20" y="{y + 22}">{note}</text>')
        y += 70
    return picture(width, y - 26, title, parts)


def peers_bar(row: dict[str, Any], y: int, width: int, longest: float) -> list[str]:
    """Who, a bar, and the seconds."""
    left, ours = 240, row["who"] == "mbrace"
    long = max(2.0, (width - left - 90) * row["seconds"] / longest)
    return [
        f'<text class="{"" if ours else "quiet"}" x="{left - 12}" y="{y + 19}" text-anchor="end">{row["who"]}</text>',
        f'<rect x="{left}" y="{y + 3}" width="{long:.1f}" height="21" rx="3" '
        f'style="fill: var(--{"bar" if ours else "other"})"/>',
        f'<text x="{left + long + 10:.1f}" y="{y + 19}" class="{"strong" if ours else ""}">'
        f"{row['seconds']:.{2 if row['seconds'] < 10 else 1}f} s</text>",
    ]


def bars(gains: list[Gain]) -> str:
    """Five bars: how many times as fast racing is as our own run without pruning."""
    width, left, row, top = 680, 250, 46, 58
    height, longest = top + row * len(gains) + 36, max(gain.times for gain in gains)
    parts: list[str] = []
    scale = (width - left - 90) / longest
    for index, gain in enumerate(gains):
        y = top + row * index
        length = scale * gain.times
        parts += [
            f'<text x="{left - 12}" y="{y + 18}" text-anchor="end">{gain.utility}</text>',
            f'<text class="quiet" x="{left - 12}" y="{y + 36}" text-anchor="end">{gain.machine}</text>',
            f'<rect x="{left}" y="{y + 6}" width="{length:.1f}" height="28" rx="3" style="fill: var(--bar)"/>',
            f'<text x="{left + length + 10:.1f}" y="{y + 26}" class="strong">{factor(gain.times)}</text>',
        ]
    one = left + scale
    parts += [
        f'<line x1="{one:.1f}" x2="{one:.1f}" y1="{top - 6}" y2="{height - 40}" style="stroke: var(--line)"/>',
        f'<text class="quiet" x="20" y="{height - 14}">'
        "* Random weights of the published shape: only the time counts. The line is 1: no gain.</text>",
    ]
    return picture(width, height, "Racing: times as fast as our own run without pruning", parts)


if __name__ == "__main__":
    main()
