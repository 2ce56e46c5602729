"""Put what the training job needs beside the repository into carry/ (ignored by git): text, vocabularies, wheels.

    python experiments/pack.py DATA [--native FILE.so] [--skip-wheels]

DATA is the folder with train.PAIR.tsv.gz, valid.PAIR.*.tsv.gz and test.PAIR.*.tsv.gz. The whole folder stays under
60 MiB: training text is recompressed, and the vocabularies are learned here since that takes minutes of CPU time.
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import lzma
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from mbrace.models.text import read_pairs
from mbrace.models.vocabulary import Vocabulary

CARRY = Path("carry")
# vocabulary name: pair, pieces, origins (None: all)
SHIPPABLE = ("europarl", "tatoeba-anki", "msdocs", "mlqe-wikipedia")
VOCABULARIES = {
    "de-en": ("de-en", 24000, None),
    "tr-en": ("tr-en", 16000, None),
    "en-et": ("en-et", 12000, None),
    "bundled": ("de-en", 8000, SHIPPABLE),
}
WHEELS = ["orjson", "sacrebleu", "portalocker", "tabulate", "colorama"]  # rich only draws bars on terminals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--native", type=Path, help="a built mbrace/_native*.so for the GPU machine's Python")
    parser.add_argument("--skip-wheels", action="store_true")
    args = parser.parse_args()
    CARRY.mkdir(exist_ok=True)
    for path in sorted(args.data.glob("*.tsv.gz")):
        if path.name.split(".")[0] in ("valid", "test"):
            shutil.copyfile(path, CARRY / path.name)
        elif path.name.startswith("train."):
            recompress(path, CARRY / path.name.removesuffix(".gz"))
    for name, (pair, size, origins) in VOCABULARIES.items():
        path = CARRY / f"{name}.spm"
        if not path.exists():
            pairs = read_pairs(args.data / f"train.{pair}.tsv.gz", origins=origins)
            lines = [line for pair_ in pairs for line in pair_ if len(line) < 400]
            path.write_bytes(Vocabulary.train(lines, size, limit=400_000, threads=2).model)
            print(f"{path}: {path.stat().st_size} bytes", flush=True)
    if not args.skip_wheels:
        unpack_wheels(CARRY / "wheels")
    if args.native:
        shutil.copyfile(args.native, CARRY / args.native.name)
    total = sum(path.stat().st_size for path in CARRY.rglob("*") if path.is_file())
    print(f"carry/: {total / 2**20:.1f} MiB")


def recompress(path: Path, plain: Path) -> None:
    """bz2 is the smaller for prose, xz for software documentation full of repeats."""
    if list(CARRY.glob(plain.name + ".*")):
        return
    rows = gzip.decompress(path.read_bytes()).decode().split("\n")
    if len(rows) > 500_000:  # the longest 1.7% of the pairs are 5% of the text: left out to fit
        rows = [row for row in rows if all(len(side) <= 300 for side in row.split("\t")[:2])]
    text = "\n".join(rows).encode()
    packed = bz2.compress(text, 9)
    suffix = ".bz2"
    if len(packed) < 20_000_000:
        packed, suffix = lzma.compress(text, preset=9 | lzma.PRESET_EXTREME), ".xz"
    plain.with_name(plain.name + suffix).write_bytes(packed)
    print(f"{plain.name}{suffix}: {len(packed)} bytes", flush=True)


def unpack_wheels(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    store = folder / "store"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--python-version",
        "3.12",
        "--only-binary=:all:",
    ]
    for tag in ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64"):
        command += ["--platform", tag]
    subprocess.run([*command, "-d", str(store), *WHEELS], check=True)
    for wheel in store.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    shutil.rmtree(store)
    for library in folder.rglob("*.so"):
        subprocess.run(["strip", "--strip-unneeded", str(library)], check=True)
    # sacreBLEU imports lxml only to read WMT's XML; an empty module saves 5 MB of the parcel.
    (folder / "lxml").mkdir()
    (folder / "lxml" / "__init__.py").write_text("")
    (folder / "lxml" / "etree.py").write_text("")


if __name__ == "__main__":
    main()
