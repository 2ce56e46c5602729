"""What `--preset` sets: the options that were not given and go with those that were."""

from __future__ import annotations

import argparse

from mbrace.cli.forecast import clash_of
from mbrace.cli.options import set_default_prune
from mbrace.forecast import MOST
from mbrace.jobs.presets import STEPS, STRINGS, main_cost, preset_settings


def apply_preset(args: argparse.Namespace, command: str) -> None:
    """Set the options of `--preset` that were not given."""
    set_default_prune(args)
    confidence = args.prune == "confidence"
    applies = {
        "regret": confidence,
        "sampling": getattr(args, "server", None) is None,
        "cover": not getattr(args, "no_shuffle", False),
    }
    cost = _cost(args) if confidence else None
    for name, value in preset_settings(args.preset, command, cost).items():
        if getattr(args, name) is None and applies.get(name, True):
            setattr(args, name, value)


def _cost(args: argparse.Namespace) -> str | None:
    """What costs most time, if the settings for it go with the options that were given; else None."""
    if args.preset == "paper" or clash_of(args) is not None:  # they were studied with plain races
        return None
    cost = main_cost(args.utility, _device(args))
    if cost is None:
        return None
    goes_with = {STRINGS: _may_forecast, STEPS: _may_be_one_step}
    return cost if goes_with[cost](args) else None


def _may_forecast(args: argparse.Namespace) -> bool:
    """Whether there can be a forecast."""
    return args.forecast != 0 and (getattr(args, "beam", None) or 0) <= MOST


def _may_be_one_step(args: argparse.Namespace) -> bool:
    """Whether one step is enough: with arithmetic draws of a model here, for one answer, and if nothing was asked for
    that only matters in a race of several."""
    arithmetic = _of_a_model(args) and getattr(args, "sampling", None) in (None, "arithmetic")
    of_races = (args.regret, args.alpha, args.bootstraps, args.forecast)
    plain = (args.nbest or 1) == 1 and getattr(args, "length_penalty", 1.0) == 1.0
    return arithmetic and plain and all(x is None for x in of_races)


def _of_a_model(args: argparse.Namespace) -> bool:
    return hasattr(args, "server") and args.server is None


def _device(args: argparse.Namespace) -> str | None:
    """The device of the utility if it was given; on a cluster, the one that workers will choose."""
    if args.device is not None or args.ray is None:
        return args.device  # type: ignore[no-any-return]
    return "cuda" if args.gpus_per_worker else "cpu"
