"""Run mbrs's own `mbrs-decode` on the bundled candidates, and write its outputs to `scores_mbrs.json`.

In a virtual environment of its own, with mbrs 0.1.8 (`make mbrs`):

    python tests/oracle/oracle_mbrs.py src/mbrace/data/demo.jsonl.xz tests/oracle/scores_mbrs.json
"""

from __future__ import annotations

import importlib.metadata
import json
import lzma
import subprocess
import sys
import tempfile
from pathlib import Path

WHOLE, SMALL, TIES = (48, 64), (12, 16), (48, 4)  # sources, and hypotheses and pseudo-references of each
NAMES = ("hypotheses", "references", "source", "lprobs")
COMMANDS = [
    *((WHOLE, f"-r references --metric {metric}{decoder}")
      for metric in ("chrf", "chrf --metric.word_order 2", "bleu")
      for decoder in ("", " --decoder pruning_mbr")),
    (SMALL, ""),
    (TIES, "--format json"),
    (SMALL, "--metric chrf --nbest 5 --format json"),
    (SMALL, "--metric chrf -s source -r references --num_references 16 --reference_lprobs lprobs --format json"),
    (SMALL, "--metric bleu --metric.tokenize char --metric.smooth_method floor --metric.max_ngram_order 3"),
    (SMALL, "--metric chrf --metric.char_order 4 --metric.beta 1 --metric.eps_smoothing true --metric.fastchrf"),
    (SMALL, "--metric ter --metric.case_sensitive --nbest 2 --format json"),
    (SMALL, "--decoder pruning_mbr --decoder.alpha 0.9 --decoder.sampling_scheduler 4 8 16 --decoder.seed 3"),
]  # fmt: skip


def write_files(records: list[dict], size: tuple[int, int], folder: Path) -> None:
    """Flat files with the first hypotheses and pseudo-references of the first records; the longer a line, the less
    likely it is."""
    sources, each = size
    lines: dict[str, list[str]] = {name: [] for name in NAMES}
    for record in records[:sources]:
        lines["source"].append(record["source"])
        lines["hypotheses"] += record["hypotheses"][:each]
        lines["references"] += record["pseudo_references"][:each]
    lines["lprobs"] = [str(-len(line) / 8) for line in lines["references"]]
    for name, own in lines.items():
        (folder / name).write_text("".join(line + "\n" for line in own), encoding="utf-8")


def options_of_all() -> dict[str, bool]:
    """Every option, and whether it is a truth value."""
    from mbrs.cli.decode import get_argparser, registry
    from mbrs.decoders import DecoderReferenceBased, DecoderReferenceless
    from mbrs.metrics import Metric, MetricReferenceless
    from simple_parsing.helpers.custom_actions import BooleanOptionalAction

    found = {}
    for metric in registry.get_registry(Metric | MetricReferenceless):
        for decoder in registry.get_registry(DecoderReferenceBased | DecoderReferenceless):
            chosen = ["--metric", metric, "--decoder", decoder, "--selector", "diverse"]
            sys.argv = ["mbrs-decode", "hypotheses", "-n", "1", *chosen]
            parser = get_argparser(sys.argv[1:])
            parser.preprocess_parser()
            for action in parser._actions:
                found |= dict.fromkeys(action.option_strings, isinstance(action, BooleanOptionalAction))
    return found


def main(candidates: Path, out: Path) -> None:
    """The outputs of every command."""
    with lzma.open(candidates, "rt", encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    found: dict[str, object] = {"mbrs": importlib.metadata.version("mbrs")}
    runs = []
    for size, options in COMMANDS:
        with tempfile.TemporaryDirectory() as folder:
            write_files(records, size, Path(folder))
            command = ["-n", str(size[1]), *options.split(), "--quiet"]
            decode = [str(Path(sys.executable).with_name("mbrs-decode")), "hypotheses", *command, "-o", "out"]
            subprocess.run(decode, cwd=folder, check=True)
            lines = (Path(folder) / "out").read_text(encoding="utf-8").splitlines()
        runs.append({"size": size, "options": options, "lines": lines})
        print(options, len(lines), file=sys.stderr)
    found |= {"runs": runs, "options": options_of_all()}
    out.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]).resolve())
