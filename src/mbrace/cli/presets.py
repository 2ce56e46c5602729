"""What `--preset` sets: the options that were not given and go with those that were."""

from __future__ import annotations

import argparse

from mbrace.cli.forecast import clash_of
from mbrace.cli.options import set_default_prune
from mbrace.forecast import MOST
from mbrace.jobs.presets import STEPS, STRINGS, preset_settings, takes_time


def apply_preset(args: argparse.Namespace, command: str) -> None:
    """Set the options of `--preset` that were not given."""
    set_default_prune(args)
    confidence = args.prune == "confidence"
    applies = {
        "regret": confidence,
        "sampling": getattr(args, "server", None) is None,
        "cover": not getattr(args, "no_shuffle", False),
    }
    settings = preset_settings(args.preset, command, _time_of(args) if confidence else None)
    if "states" in settings and not _may_share_states(args):
        settings = {name: value for name, value in settings.items() if name not in ("beam", "states")}
    for name, value in settings.items():
        if getattr(args, name) is None and applies.get(name, True):
            setattr(args, name, value)


def _time_of(args: argparse.Namespace) -> str | None:
    """What takes the utility's time. Settings for it were studied with plain races, and are left out for others: those
    for strings, which go with a forecast, where there cannot be one; those for steps, which are one step, where a list
    or a regret was asked for that may need more."""
    if args.preset == "paper" or clash_of(args) is not None:
        return None
    found = takes_time(args.utility, _device(args))
    goes_with = {
        STRINGS: args.forecast != 0 and (getattr(args, "beam", None) or 0) <= MOST,
        STEPS: args.regret is None and (args.nbest or 1) == 1,
    }
    return found if goes_with.get(found or "", True) else None


def _may_share_states(args: argparse.Namespace) -> bool:
    """Whether hypotheses come from a beam search of a model here whose width was not chosen."""
    return args.beam is None and args.states is None and args.server is None


def _device(args: argparse.Namespace) -> str | None:
    """The device of the utility if it was given; on a cluster, the one that workers will choose."""
    if args.device is not None or args.ray is None:
        return args.device  # type: ignore[no-any-return]
    return "cuda" if args.gpus_per_worker else "cpu"
