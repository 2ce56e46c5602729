"""Options that several commands share, and what they mean to the library."""

from __future__ import annotations

import argparse
import importlib
import sys

from mbrace.errors import UserError, require
from mbrace.prune import Bottom, Confidence, PruningFunction
from mbrace.schedule import Schedule, check
from mbrace.utility import Utility

UTILITIES = {"chrf": 0, "chrf+": 1, "chrf++": 2}  # the word order of each
NEURAL = {"comet": "Comet", "embedding": "Embedding", "learned": "Learned"}  # class in the module of the same name


def add_utility(parser: argparse.ArgumentParser) -> None:
    """`--utility` and its settings."""
    group = parser.add_argument_group("utility")
    group.add_argument(
        "--utility", default="chrf++", metavar="NAME", help=f"{' | '.join([*UTILITIES, *NEURAL])} (default: chrf++)"
    )
    group.add_argument("--threads", type=int, default=0, metavar="N", help="threads (default: all cores)")
    group.add_argument(
        "--metric-model",
        metavar="PATH_OR_NAME",
        help="model of a neural utility: a folder or hub name; for `learned` also en (default) | multilingual",
    )
    group.add_argument("--device", metavar="DEVICE", help="cpu | cuda | cuda:1 ... (default: a GPU if there is one)")
    group.add_argument("--dtype", metavar="DTYPE", help="of the encoder (default: bfloat16 on a GPU, else float32)")
    group.add_argument("--batch-tokens", type=int, metavar="N", help="tokens in a batch of a neural utility's encoder")


def utility_from(args: argparse.Namespace) -> Utility:
    """The utility that was asked for."""
    from mbrace.utilities.chrf import ChrF

    if args.threads < 0:
        raise UserError(f"--threads {args.threads}: must be 0 (all cores) or more")
    if args.utility in UTILITIES:
        for option in ("metric_model", "dtype", "batch_tokens"):
            if getattr(args, option, None) is not None:
                raise UserError(
                    f"--{option.replace('_', '-')}: goes with --utility {', '.join(NEURAL)}, not {args.utility}"
                )
        return ChrF(word_order=UTILITIES[args.utility], threads=args.threads or None)
    if args.utility in NEURAL:
        return _neural_from(args)
    raise UserError(f"--utility {args.utility}: unknown; choose from {', '.join([*UTILITIES, *NEURAL])}")


def _neural_from(args: argparse.Namespace) -> Utility:
    torch = require("torch", extra="neural")
    if args.utility == "comet" and args.metric_model is None:
        raise UserError("--utility comet: needs --metric-model, a checkpoint's folder or a name on the model hub")
    if args.threads:
        torch.set_num_threads(args.threads)
    kind = getattr(importlib.import_module(f"mbrace.utilities.neural.{args.utility}"), NEURAL[args.utility])
    settings = {"device": args.device, "dtype": args.dtype, "batch_tokens": args.batch_tokens}
    return kind(args.metric_model, **settings)  # type: ignore[no-any-return]


def report_truncated(truncated: int) -> None:
    """Say on stderr how many strings were over a utility's length limit, if any were."""
    if truncated:
        strings = "1 string was" if truncated == 1 else f"{truncated:,} strings were"
        print(f"mbrace: {strings} over the utility's length limit and cut there", file=sys.stderr)


def add_prune(parser: argparse.ArgumentParser) -> None:
    """`--prune`, `--schedule` and what the race needs besides."""
    group = parser.add_argument_group("race")
    group.add_argument("--prune", default="confidence", metavar="RULE", help="confidence (default) | bottom | none")
    group.add_argument("--alpha", type=float, default=None, help="confidence threshold (default: 0.99)")
    group.add_argument("--bootstraps", type=int, default=None, metavar="N", help="bootstrap resamples (default: 500)")
    group.add_argument("--beta", type=float, default=None, help="proportion `--prune bottom` drops each step")
    group.add_argument(
        "--schedule",
        default=None,
        metavar="SIZES",
        help="growing sample sizes, such as 16,32,64,128,256, or `all` to go on to the last pseudo-reference",
    )
    group.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    group.add_argument("--nbest", type=int, default=1, metavar="N", help="keep and write the N best (default: 1)")
    group.add_argument("--no-shuffle", action="store_true", help="take listed pseudo-references in their order")


def prune_from(args: argparse.Namespace) -> PruningFunction | None:
    """The pruning function that was asked for."""
    if args.prune not in ("confidence", "bottom", "none"):
        raise UserError(f"--prune {args.prune}: unknown; choose from confidence, bottom, none")
    rules = {"alpha": "confidence", "bootstraps": "confidence", "beta": "bottom"}
    for option, rule in rules.items():
        if getattr(args, option) is not None and args.prune != rule:
            raise UserError(f"--{option}: goes with --prune {rule}, not --prune {args.prune}")
    if args.prune == "confidence":
        return Confidence(
            0.99 if args.alpha is None else args.alpha, 500 if args.bootstraps is None else args.bootstraps
        )
    if args.prune == "bottom":
        if args.beta is None:
            raise UserError("--prune bottom: needs --beta, the proportion to drop each step, such as --beta 0.5")
        return Bottom(args.beta)
    return None


def schedule_from(args: argparse.Namespace) -> Schedule:
    """The schedule that was asked for; None is the utility's own."""
    if args.schedule is None or args.schedule == "all":
        return args.schedule  # type: ignore[no-any-return]
    try:
        sizes = [int(size) for size in args.schedule.split(",")]
    except ValueError:
        raise UserError(f"--schedule {args.schedule}: give whole numbers, such as 16,32,64,128,256, or all") from None
    return check(sizes)
