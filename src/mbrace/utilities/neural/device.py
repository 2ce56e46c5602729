"""Where a network runs and in which precision; for the neural utilities, the models and training alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mbrace.errors import UserError, require

if TYPE_CHECKING:
    import torch


def choose_device(device: str | None) -> torch.device:
    """`device` by name; by default a GPU if there is one, else the CPU."""
    torch = require("torch", extra="neural")
    try:
        chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(1, device=chosen)
    except Exception as error:
        raise UserError(f"device {device}: cannot be used ({str(error).splitlines()[0]}); try cpu or cuda") from error
    return chosen  # type: ignore[no-any-return]


def choose_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    """`dtype`, itself or by name; by default bfloat16 on a GPU and float32 elsewhere."""
    torch = require("torch", extra="neural")
    if dtype is None:
        return torch.bfloat16 if device.type == "cuda" else torch.float32  # type: ignore[no-any-return]
    chosen = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(chosen, torch.dtype) or not chosen.is_floating_point or chosen.itemsize < 2:
        raise UserError(f"dtype {dtype}: unknown; choose from float32, bfloat16, float16")
    return chosen  # type: ignore[no-any-return]


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Inside, torch's attention is any but cuDNN's, which plans anew for every shape: longer than a batch itself takes.

    The switch is the whole process's, so it is put back as it was.
    """
    switches = require("torch.backends.cuda", extra="neural")
    before = switches.cudnn_sdp_enabled()
    switches.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        switches.enable_cudnn_sdp(before)
