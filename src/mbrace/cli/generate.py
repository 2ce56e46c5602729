"""`mbrace generate`: candidate files from a model."""

from __future__ import annotations

import argparse
from typing import Any

from mbrace.cli.models import add_model, add_sampling, maker_from
from mbrace.errors import UserError


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command's options."""
    parser = commands.add_parser("generate", help="write hypotheses and sampled pseudo-references of a model")
    parser.add_argument(
        "sources", help="one source a line, or a .tsv with references in its second column; .gz, .bz2, .xz"
    )
    parser.add_argument("--references", metavar="FILE", help="one reference a line, copied into the records")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help="JSON Lines; .gz or .xz by suffix; taken up if it is there",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N sources")
    parser.add_argument("--prefix", default="", help="put before the line number in ids")
    parser.add_argument("--minutes", type=float, metavar="M", help="stop after so long; what is done is kept")
    parser.add_argument("--logprobs", action="store_true", help="write the pseudo-references' log-probabilities")
    parser.add_argument("--sample", type=int, default=1024, metavar="N", help="pseudo-references (1024; 0: none)")
    parser.add_argument("--seed", type=int, default=0)
    add_model(parser)
    add_sampling(parser, length="--alpha")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, generate, write."""
    import itertools

    from mbrace.cli.progress import progress
    from mbrace.models.generate import Candidates, generate, read_sources

    if args.beam < 0 or args.sample < 0 or args.beam + args.sample == 0:
        raise UserError(f"--beam {args.beam} --sample {args.sample}: give how many, of one at least")
    options = Candidates(
        beam=args.beam,
        sample=args.sample,
        epsilon=args.epsilon or None,
        temperature=args.temperature,
        seed=args.seed,
        alpha=args.length_alpha,
        logprobs=args.logprobs,
    )
    sources = list(itertools.islice(read_sources(args.sources, args.references), args.limit))
    make = maker_from(args, options)
    with progress("generating", len(sources)) as advance:
        generate(make, sources, args.output, options, prefix=args.prefix, minutes=args.minutes, advance=advance)
    return 0
