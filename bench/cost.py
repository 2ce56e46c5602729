"""What 100 million segments cost, from measured rates: fills the tables of docs/scaling.md.

    python bench/cost.py

Rates come from bench/results/scale.json (bench/scale.py), hosts.json (bench/hosts.py) and experiments/logs/*.json
(candidates made on a GPU).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hosts import SHARD, Row, driver_seconds, spent

ROOT = Path(__file__).parent.parent
SEGMENTS = 100_000_000
CORES_PER_NODE, GPUS_PER_NODE = 64, 8
LINK = 10e9 / 8  # bytes per second of a link of 10 Gbit/s


def hours(rate: float) -> float:
    """Hours for all segments at `rate` segments per second."""
    return SEGMENTS / rate / 3600


def cpu_table(rates: dict[str, float], driver: float) -> list[str]:
    """Decoding candidate files with chrF++, by one driver that can take `driver` segments per second."""
    core = rates["core"]
    lines = [
        f"One core decodes {core:,.0f} segments per second of the bundled captions, which have 62 characters on "
        f"average (256 x 256, alpha 0.99): {hours(core):,.0f} core-hours. News, of 105 characters, takes about 1.5 "
        "times as long ([rates by text](../bench/results/decode.md)).",
        "",
        f"| nodes of {CORES_PER_NODE} cores | segments per second | limited by | hours | .gz input (MB/s) | readers |",
        "|---:|---:|---|---:|---:|---:|",
    ]
    for nodes in (1, 2, 4):
        rate = min(core * nodes * CORES_PER_NODE, driver)
        limit = "cores" if rate < driver else "the driver"
        read, readers = rate * rates["bytes a sentence, packed"] / 1e6, rate / rates["read packed"]
        lines.append(f"| {nodes} | {rate:,.0f} | {limit} | {hours(rate):,.2f} | {read:,.0f} | {readers:.0f} |")
    return lines


def gpu_table(logs: list[dict[str, float]]) -> list[str]:
    """Making the candidates with a model."""
    made = sum(log["test candidates"] + log["valid candidates"] for log in logs)
    spent = sum(log["test candidates seconds"] + log["valid candidates seconds"] for log in logs)
    rate = made / spent
    lines = [
        f"One H200 makes the candidates of {rate:.2f} segments per second (transformer-base, beam 256 and 1,024",
        f"samples each, over {made:,.0f} sentences of {len(logs)} language pairs): {hours(rate):,.0f} GPU-hours.",
        "",
        f"| nodes of {GPUS_PER_NODE} GPUs | segments per second | hours | days |",
        "|---:|---:|---:|---:|",
    ]
    for nodes in (1, 4, 16, 64):
        all_gpus = rate * nodes * GPUS_PER_NODE
        lines.append(f"| {nodes} | {all_gpus:,.0f} | {hours(all_gpus):,.0f} | {hours(all_gpus) / 24:,.1f} |")
    return lines


def ends_table(rates: dict[str, float]) -> list[str]:
    """The limits of the parts that do not scale with the number of nodes."""
    return [
        "| part | segments per second | cores it can serve |",
        "|---|---:|---:|",
        *(
            f"| {name} | {rates[key]:,.0f} | {rates[key] / rates['core']:,.0f} |"
            for name, key in (
                ("one reader, .gz", "read packed"),
                ("one reader, plain", "read"),
                ("the driver, writing shards", "write"),
            )
        ),
    ]


def network_table(rows: list[Row], rates: dict[str, float]) -> list[str]:
    """What Ray and the network cost, and which of them ends first."""
    row = {each.name: each for each in rows}
    three, start = row["decode: 3 hosts"], row["start: 3 hosts"]
    records = three.records - start.records
    alone = spent(row["decode: one machine, without Ray"]) - spent(row["start: one machine, without Ray"])
    added = (spent(three) - spent(start) - alone) / records
    sent = sum(three.traffic.values()) / 2 / three.records
    driver = driver_seconds(rows)
    size, answer = rates["bytes a sentence"], rates["bytes an answer"]
    limits = [
        (f"the driver's process, at most {driver * 1e6:.0f} µs per record in shards of {SHARD}", 1 / driver),
        ("the driver's link, if only its host has the input", LINK / size),
        ("the link of one host of workers, wherever the input is", LINK / size),
        ("the driver's link, answers alone", LINK / answer),
    ]
    one, extra, total = alone / records * 1e6, added * 1e6, added * SEGMENTS / 3600
    return [
        "Over [three hosts](../bench/results/hosts.md), a record of 32 hypotheses and 64 pseudo-references takes",
        f"{one:,.0f} µs of processor time on one machine, and Ray and the network add {extra:,.0f} µs:",
        f"{total:,.0f} core-hours for {SEGMENTS:,} records. {sent / 1e3:.1f} kB per record crossed",
        "the network, where only the driver's host had the input. Blocks travel uncompressed: a record of",
        f"256 x 256 has {size / 1e3:.0f} kB, {SEGMENTS:,} of them",
        f"{size * SEGMENTS / 1e12:.1f} TB. With links of 10 Gbit/s, and records of 256 x 256:",
        "",
        "| what ends first | segments per second | cores it can serve |",
        "|---|---:|---:|",
        *(
            f"| {name} | {rate:,.0f} | {rate / rates['core']:,.0f} |"
            for name, rate in sorted(limits, key=lambda limit: limit[1])
        ),
    ]


def fill(text: str, name: str, lines: list[str]) -> str:
    """Replace the text between `<!-- name -->` and `<!-- end -->`."""
    start = text.index(f"<!-- {name} -->") + len(f"<!-- {name} -->")
    return text[:start] + "\n" + "\n".join(lines) + "\n" + text[text.index("<!-- end -->", start) :]


def main() -> None:
    """Fill the tables."""
    scale = json.loads((ROOT / "bench/results/scale.json").read_bytes())
    rates = {**scale["ends"], "core": scale["ray"][0]["rate"]}  # of one worker, without start-up
    found: list[dict[str, Any]] = json.loads((ROOT / "bench/results/hosts.json").read_bytes())
    rows = [Row(**fields) for fields in found]
    logs = [json.loads((ROOT / f"experiments/logs/{pair}.json").read_bytes()) for pair in ("de-en", "tr-en", "en-et")]
    page = ROOT / "docs/scaling.md"
    text = page.read_text(encoding="utf-8")
    parts = {"cpu": cpu_table(rates, 1 / driver_seconds(rows)), "gpu": gpu_table(logs)}
    parts |= {"ends": ends_table(rates), "network": network_table(rows, rates)}
    for name, lines in parts.items():
        text = fill(text, name, lines)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
