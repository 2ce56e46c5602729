"""`mbrace doctor`: what is installed here and what it can use."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from mbrace.cli.messages import show_labelled
from mbrace.errors import installing
from mbrace.utility import cores

# A requirement of an extra: tomli; python_version < "3.11" and extra == "config"
NEEDED = re.compile(r"""(?P<name>[\w.-]+)[^;]*;(?P<marker>.*)extra\s*==\s*['"](?P<extra>[\w-]+)['"]""")
OLDER = re.compile(r"""python_version\s*<\s*['"](\d+)\.(\d+)['"]""")


def add(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="what is installed here: versions, extras, devices, models",
        description="Versions, extras, the kernel's instruction set, devices, bundled models and caches: look here "
        "first, and put this into a bug report.",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Look and print."""
    show_labelled(list(found()))
    return 0


def found() -> Iterator[tuple[str, str]]:
    """What is shown: names and what was found of each."""
    import platform

    from mbrace import __version__
    from mbrace._native import simd_variants
    from mbrace.metrics.chrf import SIMD_VARIABLE

    yield "mbrace", __version__
    yield "python", f"{platform.python_version()} ({sys.executable})"
    yield "platform", f"{platform.platform()}, {cores()} cores"
    yield "numpy", _version("numpy") or "not installed"
    variants = simd_variants()
    yield "chrF kernel", f"{os.environ.get(SIMD_VARIABLE) or variants[0]} (usable: {', '.join(variants)})"
    yield "torch", _torch()
    for name, package in (("translator", "mbrace_de_en"), ("learned", "mbrace_learned")):
        weights = importlib.util.find_spec(package)
        yield name, "not installed" if weights is None or weights.origin is None else str(Path(weights.origin).parent)
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    yield "hub cache", os.path.expanduser(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub"))
    yield "", ""
    for extra, packages in _extras().items():
        missing = [name for name, version in packages.items() if version is None]
        installed = ", ".join(f"{name} {version}" for name, version in packages.items())
        yield f"[{extra}]", f"missing: {', '.join(missing)}" if missing else installed
        if missing:
            yield "", installing(extra)


def _extras() -> dict[str, dict[str, str | None]]:
    """For each extra, its packages and their versions; None for those that are not installed."""
    try:
        wanted = metadata.requires("mbrace") or []
    except metadata.PackageNotFoundError:  # run from a checkout
        return {}
    extras: dict[str, dict[str, str | None]] = {}
    for need in filter(None, map(NEEDED.match, wanted)):
        own, older = extras.setdefault(need["extra"], {}), OLDER.search(need["marker"])
        is_for_older = older is not None and sys.version_info >= (int(older[1]), int(older[2]))
        if need["name"] != "mbrace" and not is_for_older:
            own[need["name"]] = _version(need["name"])
    return {extra: packages for extra, packages in sorted(extras.items()) if packages}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _torch() -> str:
    """The version of torch and the devices it can use."""
    if importlib.util.find_spec("torch") is None:
        return "not installed"
    try:
        import torch
    except Exception as error:  # broken installations are what this command is for
        return f"{_version('torch')}, which cannot be loaded: {' '.join(str(error).split())}"
    devices = ["cpu"]
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        about = torch.cuda.get_device_properties(index)
        devices.append(f"cuda:{index} {about.name}, {about.total_memory / 2**30:.0f} GiB")
    if getattr(torch.backends, "mps", None) is not None and torch.backends.mps.is_available():
        devices.append("mps")
    return f"{torch.__version__}; {', '.join(devices)}"
