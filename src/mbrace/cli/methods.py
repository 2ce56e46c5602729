"""Options of other published ways to score fewer pairs: `--method`."""

from __future__ import annotations

import argparse
from typing import Any

from mbrace.errors import UserError
from mbrace.methods import METHODS, RACE, Method, method_class, method_of

USED = {
    "aggregates": ("aggregate",),
    "centroids": ("centroid",),
    "centroid_weights": ("centroid",),
    "rank": ("low-rank",),
    "fraction": ("low-rank",),
}


def add_method(parser: argparse.ArgumentParser) -> None:
    """`--method`, and the options of each method."""
    group = parser.add_argument_group("other ways to score fewer pairs (docs/methods.md)")
    group.add_argument(
        "--method",
        choices=[RACE, *METHODS],
        default=RACE,
        help="race (default); aggregate or centroid: a few averages stand for all pseudo-references; "
        "low-rank: most pairs are estimated from the others",
    )
    group.add_argument("--aggregates", type=int, metavar="N", help="averages of pseudo-references (default: 1)")
    group.add_argument("--centroids", type=int, metavar="K", help="clusters of `--method centroid` (default: 64)")
    group.add_argument(
        "--centroid-weights",
        choices=("equal", "counts"),
        help="the weight of a centroid: the same for all (default), or the number of references in its cluster",
    )
    group.add_argument("--rank", type=int, metavar="R", help="rank of `--method low-rank` (default: 8)")
    group.add_argument(
        "--fraction", type=float, metavar="F", help="fraction of pairs that `--method low-rank` scores (default: 0.125)"
    )


def prunes(args: argparse.Namespace) -> bool:
    """Whether the method that was asked for is used with a pruning function."""
    return bool(getattr(args, "method", RACE) == RACE)


def method_from(args: argparse.Namespace) -> Method | None:
    """The method that was asked for, checked; None is the race."""
    name = getattr(args, "method", RACE)
    given: dict[str, Any] = {option: getattr(args, option, None) for option in USED}
    for option, methods in USED.items():
        if given[option] is not None and name not in methods:
            raise UserError(f"--{option.replace('_', '-')}: only valid with --method {' or '.join(methods)}")
    if name == RACE:
        return method_of(None)
    _check(args, name)
    weights = given.pop("centroid_weights")
    options = {option: value for option, value in given.items() if value is not None}
    if weights is not None:
        options["weighted"] = weights == "counts"
    made: Method = method_class(name)(**options)
    return made


def _check(args: argparse.Namespace, name: str) -> None:
    """Refuse options of the command that do not go with a method; `RaceSettings` refuses those of the race."""
    without = f"only valid without --method {name}"
    if args.prune not in (None, "none"):
        raise UserError(f"--prune {args.prune}: {without}, which prunes none")
    for option in ("save_utilities", "explain"):
        if getattr(args, option, None) is not None:
            why = "which does not score every pair" if option == "save_utilities" else "which is no race"
            raise UserError(f"--{option.replace('_', '-')}: {without}, {why}")
