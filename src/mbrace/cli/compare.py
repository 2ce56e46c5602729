"""`mbrace compare`: is the difference between two systems significant?"""

from __future__ import annotations

import argparse
from typing import Any

from mbrace.cli.options import add_utility, utility_from
from mbrace.cli.score import read_aligned
from mbrace.errors import UserError


def add(commands: Any) -> None:
    """The options of `mbrace compare`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "compare",
        help="significance tests for two systems' outputs",
        description="Paired bootstrap (Koehn 2004) and paired approximate randomisation. The p-values are sacreBLEU's, "
        "except that ties count.",
    )
    for name in ("a", "b"):
        parser.add_argument(
            name,
            metavar=name.upper(),
            help="text, one translation per line, or JSON Lines or Parquet from mbrace decode, paired by id",
        )
    parser.add_argument(
        "--reference", required=True, metavar="R", help="text, or JSON Lines or Parquet with `reference`"
    )
    parser.add_argument(
        "--source", metavar="S", help="text, or JSON Lines or Parquet with `source`; for utilities that read it"
    )
    parser.add_argument("--resamples", type=int, default=1000, metavar="N", help="bootstrap resamples (default: 1000)")
    parser.add_argument(
        "--shuffles", type=int, default=10000, metavar="N", help="randomisation trials (default: 10000)"
    )
    parser.add_argument("--seed", type=int, default=12345, help="random seed (default: 12345, sacreBLEU's)")
    add_utility(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, test, print."""
    from mbrace.experiments.significance import compare

    utility = utility_from(args)
    for option in ("resamples", "shuffles"):
        if getattr(args, option) < 1:
            raise UserError(f"--{option} {getattr(args, option)}: must be 1 or more")
    if args.seed < 0:
        raise UserError(f"--seed {args.seed}: must be 0 or more")
    a, b, references, sources = read_aligned([args.a, args.b], args.reference, args.source)
    if utility.needs_source and sources is None:
        raise UserError(f"--utility {args.utility}: scores with the source; give --source S")
    options = {"resamples": args.resamples, "shuffles": args.shuffles, "seed": args.seed}
    print(f"{len(a)} sentences, {utility.name}")
    for test in compare(a, b, references, utility, sources=sources, **options):
        print(f"\n{test.measure}")
        print(f"  A {test.a:.4f}   B {test.b:.4f}   A - B {test.difference:+.4f} ({test.low:+.4f} to {test.high:+.4f})")
        print(
            f"  paired bootstrap: A higher in {test.wins:.1%} of {args.resamples} resamples, p = {test.p_bootstrap:.4f}"
        )
        print(f"  paired approximate randomisation: p = {test.p_randomisation:.4f} ({args.shuffles} shuffles)")
    return 0
