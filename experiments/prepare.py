"""The folder DATA of full_scale.py, from the parallel data that it was made for.

    python experiments/prepare.py SOURCE DATA              training and validation, the paper's test sets, vocabularies
    python experiments/prepare.py SOURCE DATA --confirm    what is decided on: only once the rules are committed

SOURCE has train.PAIR.tsv.gz (source, target, origin), valid.PAIR.*, test.PAIR.* and confirm.de-en.wmt21/22.tsv.gz.
Newstest 2019 and 2020, flores and ntrex are left out of training. flores is what tr-en and en-et are decided on, WMT21
and WMT22 (the first of their references) what de-en is; rows with a side that is in the training data are left out.
"""

from __future__ import annotations

import argparse
import lzma
import random
from collections.abc import Sequence
from pathlib import Path

from shared_stages import CONFIRM, MODELS, NEWS, one, read_rows

from mbrace.io.reading import read_lines
from mbrace.models.tokenizers import Vocabulary

HELD_OUT = ("newstest2019-2020", "flores", "ntrex")  # origins of training rows
LENT = 100_000  # English sentences of de-en for the vocabulary of tr-en, which is trained on them, translated back


def training_rows(source: Path, pair: str) -> list[str]:
    """`source TAB target TAB origin`, without what is held out."""
    rows = read_rows(one(source, f"train.{pair}.tsv*"))
    return [row for row in rows if row.rpartition("\t")[2] not in HELD_OUT]


def write(path: Path, rows: Sequence[str]) -> None:
    """Rows as an .xz file."""
    path.write_bytes(lzma.compress("".join(f"{row}\n" for row in rows).encode(), preset=6))
    print(f"{path.name}: {len(rows)} rows")


def sides(rows: Sequence[str]) -> list[str]:
    """All texts of training rows; those of NEWS as often as they are trained on."""
    return [side for row in rows for *both, origin in [row.split("\t")] for side in both * NEWS.get(origin, 1)]


def prepare(source: Path, data: Path) -> None:
    """All but the sets that are decided on."""
    lent = [row.split("\t")[1] for row in training_rows(source, "de-en") if row.endswith("\teuroparl")]
    for pair, model in MODELS.items():
        rows = training_rows(source, pair)
        write(data / f"train.{pair}.tsv.xz", rows)
        for split in ("valid", "test"):
            path = one(source, f"{split}.{pair}.*")
            write(data / f"{split}.{pair}.tsv.xz", list(read_lines(str(path))))
        texts = sides(rows) + (random.Random(1).sample(lent, LENT) if pair == "tr-en" else [])
        spm = data / f"{pair}.spm"
        if not spm.exists():
            spm.write_bytes(Vocabulary.train(texts, model.pieces, limit=200_000).model)


def confirm(source: Path, data: Path) -> None:
    """The sets that are decided on."""
    for pair, splits in CONFIRM.items():
        seen = set(sides(training_rows(source, pair)))
        for split in splits:
            if split == "flores":
                rows = [row for row in read_rows(one(source, f"train.{pair}.tsv*")) if row.endswith("\tflores")]
            else:
                rows = list(read_lines(str(one(source, f"confirm.{pair}.{split}.tsv*"))))
            kept = ["\t".join(row.split("\t")[:2]) for row in rows if not seen & set(row.split("\t")[:2])]
            write(data / f"{split}.{pair}.tsv.xz", kept)
            print(f"{split}.{pair}: {len(rows) - len(kept)} rows left out, a side is in the training data")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--confirm", action="store_true", help="the sets that are decided on")
    args = parser.parse_args()
    args.data.mkdir(parents=True, exist_ok=True)
    (confirm if args.confirm else prepare)(args.source, args.data)


if __name__ == "__main__":
    main()
