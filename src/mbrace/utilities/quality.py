"""Quality utilities by name or model: the checkpoint itself tells which class reads it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mbrace.errors import Parameter, UserError
from mbrace.settings import NetworkOptions
from mbrace.utilities.named import NAMED, prepare_torch
from mbrace.utility import QualityUtility

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Names of models, each of which estimates quality from the source alone.
QUALITY = {"cometkiwi": "Unbabel/wmt22-cometkiwi-da", **{name: NAMED[name].model for name in ("xcomet", "metricx")}}


def load_quality(
    model: str,
    *,
    threads: int = 0,
    **network: Unpack[NetworkOptions],
) -> QualityUtility:
    """The quality utility of a name in `QUALITY`, or of the folder or hub name of CometKiwi, XCOMET, a referenceless
    COMET or MetricX.

    `threads` 0 is all cores.
    """
    prepare_torch(threads)
    if model == "learned":
        raise UserError(f"{Parameter('qe')} learned: was removed: a random shortlist was better; try cometkiwi")
    model = QUALITY.get(model) or model
    module, name = _quality_class(model)
    made: Any = getattr(importlib.import_module(f"mbrace.{module}"), name)
    utility: QualityUtility = made(model, **network)
    from mbrace.cross.scorer import CrossUtility

    if isinstance(utility, CrossUtility) and not utility.reads_sources:
        raise UserError(f"{utility.name}: does not read the source, so it cannot estimate quality without a reference")
    return utility


def _quality_class(model: str) -> tuple[str, str]:
    from mbrace.neural import checkpoint, pretrained

    settings = pretrained.read_json(Path(model).expanduser() / "config.json", dict)
    if settings is not None and settings.get("model_type") != "mt5":
        kind = f"model_type {settings.get('model_type')!r}"
        raise UserError(
            f"{model}: {kind}: estimates no quality; give CometKiwi, XCOMET, a referenceless COMET or MetricX"
        )
    if settings is not None or "metricx" in pretrained.label(model).lower():
        return "cross.metricx", "MetricX"
    classes = {  # of metrics in COMET's layout
        "unified_metric": ("cross.xcomet", "XCOMET"),
        "xcomet_metric": ("cross.xcomet", "XCOMET"),
        "referenceless_regression_metric": ("neural.comet", "Referenceless"),
    }
    metric = checkpoint.class_of(model)
    if metric not in classes:
        known = ", ".join(classes)
        raise UserError(
            f"{model}: metric class {metric}: needs references; for quality give one of {known}, or MetricX"
        )
    return classes[metric]
