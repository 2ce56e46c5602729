"""What `--preset` sets: the options that were not given and go with those that were."""

from __future__ import annotations

import argparse

from mbrace.cli.forecast import clash_of
from mbrace.cli.options import set_default_prune
from mbrace.forecast import MOST
from mbrace.jobs.presets import preset_settings, strings_cost


def apply_preset(args: argparse.Namespace, command: str) -> None:
    """Set the options of `--preset` that were not given. Those for utilities whose strings cost time go with a
    forecast, and are left out where there cannot be one."""
    set_default_prune(args)
    confidence = args.prune == "confidence"
    few = (getattr(args, "beam", None) or 0) <= MOST
    may_forecast = args.preset != "paper" and args.forecast != 0 and confidence and few and clash_of(args) is None
    costly = may_forecast and strings_cost(args.utility, _device(args))
    applies = {
        "regret": confidence,
        "sampling": getattr(args, "server", None) is None,
        "cover": not getattr(args, "no_shuffle", False),
    }
    for name, value in preset_settings(args.preset, command, strings_cost=costly).items():
        if getattr(args, name) is None and applies.get(name, True):
            setattr(args, name, value)


def _device(args: argparse.Namespace) -> str | None:
    """The device of the utility if it was given; on a cluster, the one that workers will choose."""
    if args.device is not None or args.ray is None:
        return args.device  # type: ignore[no-any-return]
    return "cuda" if args.gpus_per_worker else "cpu"
