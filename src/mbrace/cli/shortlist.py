"""Options that choose the hypotheses that race: estimated quality, and a cheaper utility."""

from __future__ import annotations

import argparse

from mbrace.cli.options import QE_HELP
from mbrace.errors import UserError
from mbrace.jobs.settings import QualitySettings, UtilitySettings
from mbrace.jobs.shortlist import ShortlistSettings
from mbrace.utilities.named import check_utility, uses_model


def add_shortlist(parser: argparse.ArgumentParser) -> None:
    """`--qe` and `--coarse`."""
    group = parser.add_argument_group("which hypotheses race (default: all)")
    group.add_argument("--qe", metavar="MODEL", help=QE_HELP)
    group.add_argument("--qe-top", type=int, metavar="K", help="only the K best hypotheses by --qe race")
    group.add_argument(
        "--coarse",
        metavar="UTILITY",
        help="a cheaper utility, such as chrf++, that races first; --utility compares those that it cannot rule out",
    )
    group.add_argument("--coarse-top", type=int, metavar="K", help="only the K best hypotheses by --coarse race")
    group.add_argument("--coarse-model", metavar="PATH_OR_NAME", help="model of a neural --coarse")


def shortlist_settings(args: argparse.Namespace) -> ShortlistSettings:
    """What chooses the hypotheses that race, checked."""
    if (args.qe is None) != (args.qe_top is None):
        raise UserError("--qe and --qe-top: give both, the model and how many of its best hypotheses race")
    if args.coarse_model is not None and args.coarse is None:
        raise UserError("--coarse-model: only valid with --coarse")
    if args.coarse is not None and args.coarse_top is None and args.prune == "none":
        raise UserError("--coarse: rules nothing out with --prune none; give --coarse-top K, how many go on")
    qe = None if args.qe is None else QualitySettings(args.qe, args.device, args.dtype, args.batch_tokens)
    return ShortlistSettings(qe, args.qe_top, _coarse_settings(args), args.coarse_top)


def _coarse_settings(args: argparse.Namespace) -> UtilitySettings | None:
    name, model = args.coarse, args.coarse_model
    if name is None:
        return None
    try:
        check_utility(name, {}, model=model if uses_model(name) else None)
    except UserError as error:
        message = str(error).replace("utility ", "--coarse ", 1).replace("needs a model, ", "needs --coarse-model, ")
        raise UserError(message) from None
    if not uses_model(name):
        if model is not None:
            raise UserError(f"--coarse-model: only valid with a neural --coarse, not {name}")
        return UtilitySettings(name)
    return UtilitySettings(name, model, args.device, args.dtype, args.batch_tokens)
