"""The only place that calls loaders of transformers: code that a model's folder or repository brings never runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mbrace.errors import UserError, require

# Files in which a repository names code of its own.
CONFIGS = ("config.json", "tokenizer_config.json", "generation_config.json", "processor_config.json")


def from_pretrained(kind: str, folder: Path | None, *, extra: str = "neural", **settings: Any) -> Any:
    """What the transformers class `kind` makes of a folder (None: of `settings` alone)."""
    transformers = require("transformers", extra=extra)
    if folder is not None:
        refuse_code(folder)
    name = None if folder is None else str(folder)
    # without False, transformers would ask on standard input whether it may run a folder's code
    return getattr(transformers, kind).from_pretrained(name, trust_remote_code=False, **settings)


def refuse_code(folder: Path) -> None:
    """Refuse a folder that brings code of its own."""
    found = sorted(path.name for path in folder.glob("*.py"))
    found += [f"custom_generate/{path.name}" for path in folder.glob("custom_generate/*.py")]
    found += [f"auto_map in {name}" for name in CONFIGS if _names_code(folder / name)]
    if found:
        names = ", ".join(found[:3]) + (" ..." if len(found) > 3 else "")
        raise UserError(f"{folder}: brings code of its own ({names}), which mbrace never runs; give a model without")


def _names_code(path: Path) -> bool:
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # whoever reads it says what is wrong with it
        return False
    return isinstance(settings, dict) and "auto_map" in settings
