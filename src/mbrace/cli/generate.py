"""`mbrace generate`: candidate files from a model."""

from __future__ import annotations

import argparse
import sys
from typing import Any


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command's options."""
    parser = commands.add_parser("generate", help="write beam hypotheses and sampled pseudo-references of a model")
    parser.add_argument(
        "sources", help="one source a line, or a .tsv with references in its second column; .gz, .bz2, .xz"
    )
    parser.add_argument("--references", metavar="FILE", help="one reference a line, copied into the records")
    parser.add_argument(
        "--model", default="bundled", metavar="M", help="folder or name of a model (the bundled translator)"
    )
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help="JSON Lines; .gz or .xz by suffix; taken up if it is there",
    )
    parser.add_argument("--beam", type=int, default=256, metavar="K", help="hypotheses by beam search (256; 0: none)")
    parser.add_argument("--sample", type=int, default=1024, metavar="N", help="pseudo-references (1024; 0: none)")
    parser.add_argument(
        "--epsilon", type=float, default=0.02, help="epsilon sampling's threshold (0.02; 0: the whole distribution)"
    )
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--alpha", type=float, default=1.0, help="length penalty of beam search (1.0)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--logprobs", action="store_true", help="write the pseudo-references' log-probabilities")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N sources")
    parser.add_argument("--prefix", default="", help="put before the line number in ids")
    parser.add_argument("--minutes", type=float, metavar="M", help="stop after so long; what is done is kept")
    parser.add_argument("--device", metavar="NAME")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"])
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, generate, write."""
    from mbrace.errors import require

    require("torch", extra="models")
    from mbrace.models.generate import Candidates, generate, read_sources
    from mbrace.models.seq2seq import Seq2Seq

    sources = read_sources(args.sources, args.references)[: args.limit]
    model = Seq2Seq(args.model, device=args.device, dtype=args.dtype)
    options = Candidates(
        beam=args.beam, sample=args.sample, epsilon=args.epsilon or None, temperature=args.temperature, seed=args.seed,
        alpha=args.alpha, logprobs=args.logprobs,
    )  # fmt: skip

    def tell(done: int, total: int) -> None:
        print(f"\r{done} of {total}", end="\n" if done == total else "", file=sys.stderr, flush=True)

    generate(
        model, sources, args.output, options, prefix=args.prefix, minutes=args.minutes,
        tell=tell if sys.stderr.isatty() else None,
    )  # fmt: skip
    return 0
