"""What `--preset` sets: the options that were not given and go with those that were."""

from __future__ import annotations

import argparse

from mbrace.cli.options import set_default_prune
from mbrace.jobs.presets import PRESETS


def apply_preset(args: argparse.Namespace, command: str) -> None:
    """Set the options of `--preset` that were not given."""
    set_default_prune(args)
    applies = {"regret": args.prune == "confidence", "sampling": getattr(args, "server", None) is None}
    for name, value in PRESETS[args.preset][command].items():
        if getattr(args, name) is None and applies.get(name, True):
            setattr(args, name, value)
