"""What `--preset` sets: the options that were not given and go with those that were."""

from __future__ import annotations

import argparse

from mbrace.cli.forecast import clash_of
from mbrace.cli.options import set_default_prune
from mbrace.forecast import MOST
from mbrace.jobs.presets import MAKING, STEPS, STRINGS, main_cost, preset_settings
from mbrace.models.hypotheses import NOT_PLAIN


def apply_preset(args: argparse.Namespace, command: str) -> None:
    """Set the options of `--preset` that were not given."""
    set_default_prune(args)
    confidence = args.prune == "confidence"
    applies = {
        "regret": confidence,
        "sampling": getattr(args, "server", None) is None,
        "cover": not getattr(args, "no_shuffle", False),
        "max_behind": _may_give_up(args),
    }
    cost = _cost(args) if confidence else None
    for name, value in preset_settings(args.preset, command, cost, own_beam=_has_own_beam(args)).items():
        if getattr(args, name) is None and applies.get(name, True):
            setattr(args, name, value)


def _cost(args: argparse.Namespace) -> str | None:
    """What costs most time, if the settings for it go with the options that were given; else None."""
    if args.preset == "paper" or clash_of(args) is not None:  # they were studied with plain races
        return None
    cost = main_cost(args.utility, _device(args))
    if cost is None:
        return None
    goes_with = {STRINGS: _may_forecast, STEPS: _may_be_one_step, MAKING: _may_make_more}
    return cost if goes_with[cost](args) else None


def _may_forecast(args: argparse.Namespace) -> bool:
    """Whether there can be a forecast: not with a beam search of the user's own, since it was not as good with some."""
    return args.forecast != 0 and (getattr(args, "beam", None) or 0) <= MOST and not _has_beam_options(args)


def _may_be_one_step(args: argparse.Namespace) -> bool:
    """Whether one step is enough: with arithmetic draws of a model here, for one answer, and if nothing was asked for
    that only matters in a race of several."""
    arithmetic = _of_a_model(args) and getattr(args, "sampling", None) in (None, "arithmetic")
    of_races = (args.regret, args.alpha, args.bootstraps, args.forecast)
    few = arithmetic and all(x is None for x in of_races)
    # with other beams, few draws were found not to be as good
    return few and _may_give_up(args) and not _has_beam_options(args)


def _may_give_up(args: argparse.Namespace) -> bool:
    """Whether there may be fewer hypotheses: this was studied for one answer, and with plain scores by length."""
    return (args.nbest or 1) == 1 and getattr(args, "length_penalty", 1.0) == 1.0


def _may_make_more(args: argparse.Namespace) -> bool:
    """Whether more hypotheses cost nothing besides."""
    return not _has_own_beam(args)


def _has_own_beam(args: argparse.Namespace) -> bool:
    """Whether the user chose how hypotheses are made, or they are not made by a model here."""
    return not _of_a_model(args) or args.beam is not None or _has_beam_options(args)


def _has_beam_options(args: argparse.Namespace) -> bool:
    """Whether the user chose how beam search saves time."""
    return any(getattr(args, name, None) is not None for name in NOT_PLAIN)


def _of_a_model(args: argparse.Namespace) -> bool:
    return hasattr(args, "server") and args.server is None


def _device(args: argparse.Namespace) -> str | None:
    """The device of the utility if it was given; on a cluster, the one that workers will choose."""
    if args.device is not None or args.ray is None:
        return args.device  # type: ignore[no-any-return]
    return "cuda" if args.gpus_per_worker else "cpu"
