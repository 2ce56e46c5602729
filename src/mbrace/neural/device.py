"""On which device a network runs and in which precision: for neural utilities, models and training."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from mbrace.errors import SettingError, UserError, require, warn
from mbrace.settings import Network, NetworkOptions
from mbrace.utility import limit_helpers

if TYPE_CHECKING:
    import torch

Item = TypeVar("Item")

_lock = threading.Lock()
_inside: list[None] = []  # an entry for every `without_cudnn_attention` that is still active
_before: list[bool] = []  # whether cuDNN's attention was on before the first of them


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its class if it has none: libraries append whole reports."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def choose_device(device: str | None) -> torch.device:
    """`device` by name; by default a GPU if there is one, else the CPU."""
    torch = require("torch", extra="neural")
    try:
        chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(1, device=chosen)
    except Exception as error:
        raise UserError(f"device {device}: cannot be used ({first_line(error)}); try cpu or cuda") from error
    return chosen  # type: ignore[no-any-return]


def choose_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    """`dtype`, given as such or by name; by default bfloat16 on a GPU and float32 elsewhere."""
    torch = require("torch", extra="neural")
    if dtype is None:
        return torch.bfloat16 if device.type == "cuda" else torch.float32  # type: ignore[no-any-return]
    chosen = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(chosen, torch.dtype) or not chosen.is_floating_point or chosen.itemsize < 2:
        reason = "was removed: it could change answers from run to run" if dtype == "auto" else "unknown"
        raise SettingError("dtype", dtype, f"{reason}; choose from float32, bfloat16, float16")
    return chosen  # type: ignore[no-any-return]


class Placement(NamedTuple):
    """Where a network runs: its device and precision, and the most tokens of a batch (None: chosen by memory)."""

    device: torch.device
    dtype: torch.dtype
    batch_tokens: int | None


def place(options: NetworkOptions) -> Placement:
    """Where a network of these options runs; invalid ones are refused."""
    chosen = Network(**options)
    device = choose_device(chosen.device)
    return Placement(device, choose_dtype(chosen.dtype, device), chosen.batch_tokens)


def has_16_bits(dtype: torch.dtype) -> bool:
    """Whether numbers are bfloat16 or float16."""
    return dtype.is_floating_point and dtype.itemsize == 2


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype as users write it, such as bfloat16."""
    return str(dtype).removeprefix("torch.")


def limit_threads(threads: int) -> None:
    """Let networks on a CPU, and tokenizers, use `threads` threads."""
    require("torch", extra="neural").set_num_threads(threads)
    limit_helpers(threads)
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads))  # read when a tokenizer first gets a batch


@contextlib.contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Inside, torch does not use cuDNN's attention, which plans for every new shape, slower than the batch itself.

    The switch applies to the whole process, so the last thread to leave restores it.
    """
    switches = require("torch.backends.cuda", extra="neural")
    with _lock:
        if not _inside:
            _before[:] = [switches.cudnn_sdp_enabled()]
            switches.enable_cudnn_sdp(False)
        _inside.append(None)
    try:
        yield
    finally:
        with _lock:
            _inside.pop()
            if not _inside:
                switches.enable_cudnn_sdp(_before[0])


def supports_triton(device: torch.device) -> bool:
    """Whether our Triton kernels may be tried on a device: an NVIDIA GPU, from Ampere on."""
    import torch

    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


@cache
def triton_kernels(device: torch.device) -> Any:
    """The module of our Triton kernels; None where they cannot run, which one small kernel finds out. (On a CPU they
    run only in Triton's interpreter, for tests.)"""
    import torch

    if not supports_triton(device) and not (device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"):
        return None
    try:
        from mbrace.neural import kernels

        one = torch.ones(1, 96, device=device)
        kernels.fused_add_norm(one, one, one[0], one[0], 1e-5)
    except Exception as error:  # such as no Triton, or no compiler for its launcher
        warn(f"Triton is not available ({first_line(error)}): using slower PyTorch operations")
        return None
    return kernels


def halve_on_oom(work: Callable[[Any], Item], rows: Any, one: str, smaller: Callable[[Any], None]) -> list[Item]:
    """Apply `work` to rows, which can be sliced; halve the batch, again and again, where a GPU is out of memory.

    `smaller` is called with the half that is tried next; `one` names a single row, in the error if that is too much.
    """
    torch = require("torch", extra="neural")
    try:
        return [work(rows)]
    except torch.cuda.OutOfMemoryError:
        if len(rows) <= 1:
            raise UserError(f"the GPU is out of memory for {one}; use the CPU") from None
    torch.cuda.empty_cache()
    halves = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    smaller(halves[0])
    return [found for half in halves for found in halve_on_oom(work, half, one, smaller)]


def prefetched(items: Iterable[Item], *, most: int = 4) -> Generator[Item]:
    """Prefetch up to `most` items on a background thread."""
    iterator = iter(items)
    thread = ThreadPoolExecutor(1, thread_name_prefix="mbrace-batches")
    try:
        ahead = deque(thread.submit(next, iterator, None) for _ in range(most))
        while (item := ahead.popleft().result()) is not None:
            ahead.append(thread.submit(next, iterator, None))
            yield item
    finally:
        thread.shutdown(cancel_futures=True)
