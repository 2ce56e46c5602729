"""What `--preset` sets: the options that were not given and go with those that were."""

from __future__ import annotations

import argparse

from mbrace.cli.forecast import clash_of
from mbrace.cli.options import set_default_prune
from mbrace.errors import UserError
from mbrace.jobs.presets import preset_settings
from mbrace.utilities.named import runs_network


def apply_preset(args: argparse.Namespace, command: str) -> None:
    """Set the options of `--preset` that were not given. Those for networks are chosen for races with a forecast, and
    are left out where there can be none."""
    set_default_prune(args)
    neural = args.forecast != 0 and clash_of(args) is None and _runs_network(args.utility)
    applies = {
        "regret": args.prune == "confidence",
        "forecast": neural,
        "sampling": getattr(args, "server", None) is None,
    }
    for name, value in preset_settings(args.preset, command, neural=neural).items():
        if getattr(args, name) is None and applies.get(name, True):
            setattr(args, name, value)


def _runs_network(name: str) -> bool:
    """What is wrong with a name is said where the utility is made."""
    try:
        return runs_network(name)
    except UserError:
        return False
