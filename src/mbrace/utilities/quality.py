"""Quality utilities by model: the checkpoint itself tells which class reads it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from mbrace.errors import UserError, require
from mbrace.neural.device import limit_threads
from mbrace.utility import QualityUtility

_UNIFIED = ("mbrace.cross.unified", "Unified")
_METRICX = ("mbrace.cross.metricx", "MetricX")
_COMET_CLASSES = {  # class_identifier: the class that reads it
    "unified_metric": _UNIFIED,
    "xcomet_metric": _UNIFIED,
    "referenceless_regression_metric": ("mbrace.neural.referenceless", "Referenceless"),
}


def load_quality(
    model: str,
    *,
    threads: int = 0,
    device: str | None = None,
    dtype: str | None = None,
    batch_tokens: int | None = None,
) -> QualityUtility:
    """The quality utility of a checkpoint's folder or hub name: CometKiwi, XCOMET, a referenceless COMET, MetricX.

    `threads` 0 is all cores.
    """
    require("torch", extra="neural")
    if threads:
        limit_threads(threads)
    if model == "learned":
        raise UserError(
            "qe learned: was removed (a random shortlist was better); give a CometKiwi or MetricX checkpoint"
        )
    module, name = _class_of(model)
    made: Any = getattr(importlib.import_module(module), name)
    utility: QualityUtility = made(model, device=device, dtype=dtype, batch_tokens=batch_tokens)
    from mbrace.cross.scorer import CrossUtility

    if isinstance(utility, CrossUtility) and not utility.reads_sources:
        raise UserError(f"{utility.name}: does not read the source, so it cannot estimate quality without a reference")
    return utility


def _class_of(model: str) -> tuple[str, str]:
    from mbrace.neural import checkpoint, pretrained

    settings = pretrained.read_json(Path(model).expanduser() / "config.json", dict)
    if settings is not None and settings.get("model_type") != "mt5":
        kind = f"model_type {settings.get('model_type')!r}"
        raise UserError(
            f"{model}: {kind}: estimates no quality; give CometKiwi, XCOMET, a referenceless COMET or MetricX"
        )
    if settings is not None or "metricx" in pretrained.label(model).lower():
        return _METRICX
    metric = checkpoint.class_of(model)
    if metric not in _COMET_CLASSES:
        known = ", ".join(_COMET_CLASSES)
        raise UserError(
            f"{model}: metric class {metric}: needs references; for quality give one of {known}, or MetricX"
        )
    return _COMET_CLASSES[metric]
