"""`mbrace doctor`: what is installed here and what it can use."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from mbrace.cli.messages import show
from mbrace.errors import installing
from mbrace.utility import cores

WIDTH = 80
# A requirement of an extra: tomli; python_version < "3.11" and extra == "config"
NEEDED = re.compile(r"""(?P<name>[\w.-]+)[^;]*;(?P<marker>.*)extra\s*==\s*['"](?P<extra>[\w-]+)['"]""")
OLDER = re.compile(r"""python_version\s*<\s*['"](\d+)\.(\d+)['"]""")


def add(commands: Any) -> None:
    """The options of `mbrace doctor`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="what is installed here: versions, extras, devices, models",
        description="Versions, extras, the kernel's instruction set, devices, bundled models and caches: look here "
        "first, and put this into a bug report.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Look and print."""
    found = examine()
    show(json.dumps(found, indent=1) if args.json else as_text(found))
    return 0


def examine() -> dict[str, Any]:
    """Everything that is shown, as JSON values."""
    import platform

    import numpy

    from mbrace import __version__
    from mbrace._native import simd_variants
    from mbrace.metrics.chrf import SIMD_VARIABLE

    return {
        "mbrace": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "numpy": numpy.__version__,
        "cores": cores(),
        "simd": {"in_use": os.environ.get(SIMD_VARIABLE) or simd_variants()[0], "usable": simd_variants()},
        "extras": _extras(),
        "torch": _torch(),
        "models": {"translator": _folder("mbrace_de_en"), "learned": _folder("mbrace_learned")},
        "caches": {"huggingface": _hub_cache()},
    }


def as_text(found: dict[str, Any]) -> str:
    """What was found, as lines of text."""
    simd, torch = found["simd"], found["torch"]
    rows = [(name, str(found[name])) for name in ("mbrace", "python", "platform", "numpy", "cores")]
    rows += [("chrF kernel", f"{simd['in_use']} (usable: {', '.join(simd['usable'])})")]
    rows += [("torch", "not installed" if torch is None else _torch_text(torch))]
    for name, folder in found["models"].items():
        rows.append((name, folder or "not installed"))
    rows += [("hub cache", found["caches"]["huggingface"]), ("", "")]
    for extra, packages in found["extras"].items():
        missing = [name for name, version in packages.items() if version is None]
        installed = ", ".join(f"{name} {version}" for name, version in packages.items() if version is not None)
        rows.append((f"[{extra}]", installed if not missing else f"missing: {', '.join(missing)}"))
        if missing:
            rows.append(("", installing(extra)))
    width = max(len(name) for name, _ in rows)
    return "\n".join(_wrapped(f"{name:<{width}}  ", text) for name, text in rows)


def _wrapped(label: str, text: str) -> str:
    """A text next to its label, in lines of at most 80 characters where its words allow it."""
    how: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(text, WIDTH, initial_indent=label, subsequent_indent=" " * len(label), **how).rstrip()


def _extras() -> dict[str, dict[str, str | None]]:
    """For each extra, its packages and their versions; None for those that are not installed."""
    from importlib import metadata

    try:
        wanted = metadata.requires("mbrace") or []
    except metadata.PackageNotFoundError:  # run from a checkout
        return {}
    extras: dict[str, dict[str, str | None]] = {}
    for found in filter(None, map(NEEDED.match, wanted)):
        own, older = extras.setdefault(found["extra"], {}), OLDER.search(found["marker"])
        is_for_older = older is not None and sys.version_info >= (int(older[1]), int(older[2]))
        if found["name"] != "mbrace" and not is_for_older:
            own[found["name"]] = _version(found["name"])
    return {extra: packages for extra, packages in sorted(extras.items()) if packages}


def _version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _torch() -> dict[str, Any] | None:
    """The version of torch and the devices it can use; None if it is not installed."""
    if importlib.util.find_spec("torch") is None:
        return None
    try:
        import torch
    except Exception as error:  # broken installations are what this command is for
        return {"version": _version("torch"), "error": " ".join(str(error).split()), "devices": []}
    devices = ["cpu"]
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        about = torch.cuda.get_device_properties(index)
        devices.append(f"cuda:{index} {about.name}, {about.total_memory / 2**30:.0f} GiB")
    if getattr(torch.backends, "mps", None) is not None and torch.backends.mps.is_available():
        devices.append("mps")
    return {"version": torch.__version__, "error": None, "devices": devices}


def _torch_text(torch: dict[str, Any]) -> str:
    if torch["error"]:
        return f"{torch['version']}, which cannot be loaded: {torch['error']}"
    return f"{torch['version']}; {', '.join(torch['devices'])}"


def _folder(package: str) -> str | None:
    """Where a package of weights is installed."""
    found = importlib.util.find_spec(package)
    return None if found is None or found.origin is None else str(Path(found.origin).parent)


def _hub_cache() -> str:
    """Where models from the hub are kept."""
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    return os.path.expanduser(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub"))
