"""Write what README.md, docs/benchmarks.md and their chart say about speed from the committed tables.

`python bench/readme.py` (no arguments, takes a second). Text between `<!-- NAME -->` and `<!-- end -->` is replaced.
"""

from __future__ import annotations

import re
from pathlib import Path

from readme_gains import (
    RESULTS,
    ROOT,
    Gain,
    chrf_gain,
    comet_gain,
    cross_gains,
    factor,
    fast_sentences,
    learned_gain,
    paper_way_gain,
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
    gains = [chrf_gain(), learned_gain(), comet_gain(), *cross_gains()]
    sections = {
        "peers": peers_table(),
        "gains": gains_table(gains),
        "translator": translator_table(),
        "kernel": kernel_table(),
        "decode": decode_table(),
        "comet": comet_table(),
        "models": models_table(),
        "fast": fast_sentences(),
        "fewer strings": fewer_strings_table(),
        "translating": translating_table(),
    }
    names = ("README.md", "docs/benchmarks.md")
    pages = {ROOT / name: (ROOT / name).read_text(encoding="utf-8") for name in names}
    for path, page in pages.items():
        for name, text in sections.items():
            pattern = re.compile(rf"<!-- {name} -->.*?<!-- end -->", re.DOTALL)
            page = pattern.sub(lambda _, name=name, text=text: f"<!-- {name} -->\n{text}\n<!-- end -->", page)
        pages[path] = page
    return {**pages, ROOT / "docs" / "pictures" / "gains.svg": bars(gains)}


def peers_table() -> str:
    """Standard MBR here, with mbrs and by the paper's procedure."""
    jobs = {job["job"]: job for job in stored("peers")["jobs"]}
    rows = (
        ("chrF", "mbrs, with fastChrF, its fastest chrF", "mbrs mbr, fastChrF", "mbrace chrF"),
        ("chrF++", "the paper's procedure, with sacreBLEU", "paper: sacreBLEU, standard", "mbrace chrF++"),
    )
    lines = [
        "| standard MBR with | by | seconds | mbrace | times as fast | same answers |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for metric, what, name, our_name in rows:
        job, ours = jobs[name], jobs[our_name]
        theirs, here = (each["seconds"] / each["sentences"] for each in (job, ours))
        same = f"{job['agreement']} of {job['sentences']}"
        lines.append(f"| {metric} | {what} | {theirs:.3g} | {here:.5f} | **{theirs / here:,.0f}x** | {same} |")
    return "\n".join(lines)


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


def translator_table() -> str:
    """The bundled translator."""
    table = [line for line in (RESULTS / "translator.md").read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    short = [" | ".join(row[:3] + row[4:5]) for row in rows if not set(row[0]) <= set("-:")]
    short[0] = short[0].replace("| chrF++ |", "| chrF++ (decoded with) |")
    return "\n".join([f"| {short[0]} |", "|---|---:|---:|---:|", *(f"| {row} |" for row in short[1:])])


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


def decode_table() -> str:
    """`mbrace decode` from file to file."""
    lines = [
        "| text | characters | unpruned, one core | alpha 0.99, one core "
        "| unpruned, two cores | alpha 0.99, two cores |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    modes = ("no pruning", "alpha 0.99", "no pruning, 2 threads", "alpha 0.99, 2 threads")
    for file in stored("decode")["files"]:
        rates = [f"{1000 / (file['wall'][mode] - file['start']):,.0f}" for mode in modes]
        lines.append(f"| {file['name']} | {file['characters']:.0f} | {' | '.join(rates)} |")
    return "\n".join(lines)


def comet_table() -> str:
    """Racing at COMET-22's size against more and more distant baselines."""
    ratios = {what: ratio for what, ratio, *_ in stored("neural")["ratios"]}
    rows = (
        ("our own run without pruning, 64 sentences at a time", "bfloat16", paper_way_gain().times),
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


def models_table() -> str:
    """Live models: translating and sampling."""
    models = stored("models")
    seconds = {name: row["total"] for name, row in models["translating"].items()}
    rates = models["sampling"]
    generate = max(rate for name, rate in rates.items() if name.startswith("generate"))
    ours = seconds["racing, ahead"]
    rows = (
        (
            "translating 100 sentences by a race",
            f"{ours:.1f} s",
            "our own standard MBR",
            seconds["standard, ours"] / ours,
        ),
        ("", "", "standard MBR the paper's way (batching, mostly)", seconds["standard, the paper's way"] / ours),
        (
            "epsilon sampling, 256 per source",
            f"{rates['mbrace sample']:,.0f} samples per second",
            "the fastest use of `generate`",
            rates["mbrace sample"] / generate,
        ),
    )
    lines = ["| what | mbrace | against | times as fast |", "|---|---:|---|---:|"]
    return "\n".join([*lines, *(f"| {a} | {b} | {c} | {factor(d)} |" for a, b, c, d in rows)])


def bars(gains: list[Gain]) -> str:
    """Five bars: how many times as fast racing is as our own run without pruning."""
    width, left, row, top = 880, 252, 44, 64
    height, longest = top + row * len(gains) + 36, max(gain.times for gain in gains)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-label="How many times as fast racing is as our own run without pruning">',
        "<style>",
        ":root { --ink: #1d2733; --quiet: #5d6b7a; --bar: #0b7a75; --line: #c2410c; --paper: #ffffff; }",
        "@media (prefers-color-scheme: dark) {",
        ":root { --ink: #e8edf2; --quiet: #9fb0c0; --bar: #2fb8ae; --line: #fb923c; --paper: #12181f; } }",
        'text { font: 14px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: var(--ink); }',
        ".quiet { fill: var(--quiet); font-size: 13px } .title { font-size: 16px; font-weight: 600 }",
        "</style>",
        f'<rect width="{width}" height="{height}" rx="10" style="fill: var(--paper)"/>',
        '<text class="title" x="24" y="34">Racing: times as fast as our own run without pruning</text>',
    ]
    scale = (width - left - 110) / longest
    for index, gain in enumerate(gains):
        y = top + row * index
        length = scale * gain.times
        parts += [
            f'<text x="{left - 14}" y="{y + 18}" text-anchor="end">{gain.utility}</text>',
            f'<text class="quiet" x="{left - 14}" y="{y + 35}" text-anchor="end">{gain.machine}</text>',
            f'<rect x="{left}" y="{y + 6}" width="{length:.1f}" height="28" rx="3" style="fill: var(--bar)"/>',
            f'<text x="{left + length + 10:.1f}" y="{y + 26}" font-weight="600">{factor(gain.times)}</text>',
        ]
    one, last = left + scale, height - 14
    parts += [
        f'<line x1="{one:.1f}" x2="{one:.1f}" y1="{top - 6}" y2="{height - 40}" style="stroke: var(--line)"/>',
        f'<text class="quiet" x="24" y="{last}">'
        "* random weights of that shape: speed only. The line is 1: no gain.</text>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
