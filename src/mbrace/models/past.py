"""The keys and values of earlier time steps, which the newest position of every row attends to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mbrace.models.choice import kernels_for

# As fused.attend: (new, keys, values, table, time) to the attention's output.
Attend = Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]


class Past(Protocol):
    """The past of a grid of rows."""

    def attend(self, layer: int, new: Tensor) -> Tensor:
        """Store the newest key and value, and attend: (rows, heads x size); `new` (rows, 3, heads, size) is q, k, v."""
        ...

    def advance(self) -> None:
        """All layers have attended: go on to the next time step."""
        ...

    def select(self, rows: Tensor) -> None:
        """Keep these rows (with repeats), in this order."""
        ...


def past_for(device: torch.device, dtype: torch.dtype, layers: int) -> Past:
    """An empty past; with an index of rows where there is a kernel for it."""
    fused = kernels_for(device)
    return CopiedPast(dtype, layers) if fused is None else IndexedPast(dtype, layers, fused.attend)


class CopiedPast:
    """Every selection copies the keys and values of the rows: (room, rows, heads, size), room for that many steps."""

    def __init__(self, dtype: torch.dtype, layers: int) -> None:
        self._dtype, self._layers, self._time, self._room = dtype, layers, 0, 0
        self._cache: list[Tensor] = []

    def attend(self, layer: int, new: Tensor) -> Tensor:
        """Store the newest key and value, and attend: (rows, heads x size); `new` (rows, 3, heads, size) is q, k, v."""
        if self._time == self._room:
            self._grow(new)
        keys, values = self._cache[2 * layer], self._cache[2 * layer + 1]
        q, k, v = new.unbind(1)
        keys[self._time], values[self._time] = k, v
        past_keys, past_values = (part[: self._time + 1].permute(1, 2, 0, 3) for part in (keys, values))
        return F.scaled_dot_product_attention(q[:, :, None], past_keys, past_values)[:, :, 0].flatten(1)

    def advance(self) -> None:
        """All layers have attended: go on to the next time step."""
        self._time += 1

    def select(self, rows: Tensor) -> None:
        """Keep these rows (with repeats), in this order."""
        for number, old in enumerate(self._cache):
            new = old.new_empty((self._room, len(rows), *old.shape[2:]))
            torch.index_select(old[: self._time], 1, rows, out=new[: self._time])
            self._cache[number] = new

    def _grow(self, new: Tensor) -> None:
        self._room = max(16, 2 * self._room)
        shape = (self._room, len(new), *new.shape[2:])
        grown = [torch.empty(shape, dtype=self._dtype, device=new.device) for _ in range(2 * self._layers)]
        for old, larger in zip(self._cache, grown, strict=False):
            larger[: self._time] = old[: self._time]
        self._cache = grown


class IndexedPast:
    """Keys and values stay where they were stored; a table says which row's they are: (room, capacity).

    A selection changes the table alone. Rows of a beam mostly share their past, which is then read from the GPU's
    nearest memory.
    """

    def __init__(self, dtype: torch.dtype, layers: int, attend: Attend) -> None:
        self._dtype, self._layers, self._attend = dtype, layers, attend
        self._time = self._room = self._capacity = 0
        self._cache: list[Tensor] = []
        self._table = torch.empty(0, 0, dtype=torch.int32)

    def attend(self, layer: int, new: Tensor) -> Tensor:
        """Store the newest key and value, and attend: (rows, heads x size); `new` (rows, 3, heads, size) is q, k, v."""
        if layer == 0:
            if self._time == self._room or len(new) > self._capacity:
                self._grow(new)
            self._table[self._time] = torch.arange(self._capacity, dtype=torch.int32, device=new.device)
        return self._attend(new, self._cache[2 * layer], self._cache[2 * layer + 1], self._table, self._time)

    def advance(self) -> None:
        """All layers have attended: go on to the next time step."""
        self._time += 1

    def select(self, rows: Tensor) -> None:
        """Keep these rows (with repeats), in this order."""
        table = self._table[: self._time].index_select(1, rows)
        if len(rows) > self._capacity:  # the cache is enlarged by the next `attend`
            self._table = table
        else:
            self._table[: self._time, : len(rows)] = table

    def _grow(self, new: Tensor) -> None:
        rows, time = self._capacity, self._time
        self._room = max(16, 2 * self._room) if time == self._room else self._room
        self._capacity = max(rows, len(new))
        shape = (self._room, self._capacity, *new.shape[2:])
        grown = [torch.empty(shape, dtype=self._dtype, device=new.device) for _ in range(2 * self._layers)]
        for old, larger in zip(self._cache, grown, strict=False):
            larger[:time, :rows] = old[:time]
        table = torch.zeros(shape[:2], dtype=torch.int32, device=new.device)
        table[:time, : self._table.shape[1]] = self._table[:time]
        self._cache, self._table = grown, table
