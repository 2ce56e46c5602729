"""The cache of keys and values of earlier time steps, to which the newest position of every row attends."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mbrace import _native
from mbrace.models import gpu
from mbrace.neural.device import has_16_bits

# As kernels.attend and attend_on_cpu: (new, keys, values, table, time, used) to the attention's output.
Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, "Tensor | None"], Tensor]


FIRST_ROOM = 64  # time steps of room at first: growing makes the GPU wait and steps be recorded again


def cache_for(
    device: torch.device, dtype: torch.dtype, layers: int, shape: tuple[int, int], *, shared: bool = True
) -> IndexedCache | CopiedCache:
    """An empty cache of heads x size; with an index of rows where there is a kernel for it and it pays.

    `shared` says that rows will come to share their past, as those of a beam do.
    """
    kernels = gpu.kernels_for(device)
    if kernels is not None:
        return IndexedCache(dtype, layers, kernels.attend, shape, device, recordable=True)
    if device.type == "cpu" and has_16_bits(dtype):
        # a CPU multiplies matrices of 16 bits faster, but attends to one position four times as slowly as in 32 bits
        dtype = torch.float32
    if device.type == "cpu" and dtype == torch.float32 and shared:
        return IndexedCache(dtype, layers, attend_on_cpu, shape, device)
    return CopiedCache(dtype, layers)


def attend_on_cpu(
    new: Tensor, keys: Tensor, values: Tensor, table: Tensor, time: Tensor | int, used: Tensor | None = None
) -> Tensor:
    """As kernels.attend: self-attention (rows, heads x size) of the newest position; keys and values are float32.

    One thread does it: torch's others, which spin between their own work, leave no core for more (see docs/kernel.md).
    """
    newest = new.float().contiguous()
    seen = _native.attend(newest.numpy(), keys.numpy(), values.numpy(), table.numpy(), int(time))
    return torch.from_numpy(seen).to(new.dtype)


class CopiedCache:
    """Every selection copies the keys and values of the rows: (room, rows, heads, size), room for that many steps.

    The cache is double-buffered: allocating new memory for each copy would take longer than the copy.
    """

    def __init__(self, dtype: torch.dtype, layers: int) -> None:
        self._dtype, self._layers, self._time, self._room = dtype, layers, 0, 0
        self._cache: list[Tensor] = []
        self._spare: list[Tensor] = []  # the other buffer

    recordable = False  # memory moves at every selection

    @property
    def now(self) -> int:
        """The present time step."""
        return self._time

    def must_grow(self, time: int) -> bool:
        """Whether there is no room yet for the step at `time`."""
        return True

    def make_room(self, time: int, rows: int) -> bool:
        """Room is made while attending."""
        return False

    def attend(self, layer: int, new: Tensor, used: Tensor | None = None) -> Tensor:
        """Store the newest key and value, and attend: (rows, heads x size); `new` (rows, 3, heads, size) is q, k, v."""
        if self._time == self._room:
            self._grow(new)
        keys, values = self._cache[2 * layer], self._cache[2 * layer + 1]
        q, k, v = new.unbind(1)
        keys[self._time], values[self._time] = k, v
        past_keys, past_values = (part[: self._time + 1].permute(1, 2, 0, 3) for part in (keys, values))
        seen = F.scaled_dot_product_attention(q[:, :, None].to(keys.dtype), past_keys, past_values)
        return seen[:, :, 0].flatten(1).to(q.dtype)

    def advance(self) -> None:
        """Advance to the next time step, once all layers have attended."""
        self._time += 1

    def select(self, rows: Tensor) -> None:
        """Keep these rows (with repeats), in this order."""
        shape = (self._room, len(rows), *self._cache[0].shape[2:]) if self._cache else ()
        if not self._spare or self._spare[0].shape != shape:
            self._spare = [old.new_empty(shape) for old in self._cache]
        for old, new in zip(self._cache, self._spare, strict=True):
            torch.index_select(old[: self._time], 1, rows, out=new[: self._time])
        self._cache, self._spare = self._spare, self._cache

    def _grow(self, new: Tensor) -> None:
        self._room = max(16, 2 * self._room)
        shape = (self._room, len(new), *new.shape[2:])
        grown = [torch.empty(shape, dtype=self._dtype, device=new.device) for _ in range(2 * self._layers)]
        for old, larger in zip(self._cache, grown, strict=False):
            larger[: self._time] = old[: self._time]
        self._cache = grown


class IndexedCache:
    """Keys and values stay where they were stored; a table (room, capacity) maps each row's past to rows of the cache.

    A selection changes the table alone. Rows of a beam mostly share their past, which is then read from the CPU's
    cache. At the present time step and later, the table says that every row is its own. `shape` is (heads, size), and
    `recordable` says whether `attend` can be recorded.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        layers: int,
        attend: Attend,
        shape: tuple[int, int],
        device: torch.device,
        *,
        recordable: bool = False,
    ) -> None:
        self._dtype, self._layers, self._attend, self._shape = dtype, layers, attend, shape
        self.recordable = recordable
        self._time = self._room = self._capacity = 0
        self._cache: list[Tensor] = []
        self._table = torch.empty(0, 0, dtype=torch.int32, device=device)
        self._clock = torch.zeros(1, dtype=torch.int64, device=device)

    @property
    def now(self) -> Tensor:
        """The present time step, (1,): a step that is replayed reads it where it is."""
        return self._clock

    def must_grow(self, time: int) -> bool:
        """Whether there is no room yet for the step at `time`."""
        return time >= self._room

    def make_room(self, time: int, rows: int) -> bool:
        """Make room for the step at `time`; True if memory has moved."""
        self._time = time
        if time < self._room and rows <= self._capacity:
            return False
        self._grow(rows)
        return True

    def attend(self, layer: int, new: Tensor, used: Tensor | None = None) -> Tensor:
        """As CopiedCache.attend."""
        return self._attend(new, self._cache[2 * layer], self._cache[2 * layer + 1], self._table, self._clock, used)

    def advance(self) -> None:
        """Advance to the next time step, once all layers have attended."""
        self._time += 1
        self._clock += 1

    def select(self, rows: Tensor) -> None:
        """Keep these rows (with repeats), in this order."""
        count, room = len(rows), self._room
        past = torch.arange(room, device=rows.device)[:, None] < self._clock
        own = torch.arange(count, dtype=torch.int32, device=rows.device)
        table = torch.where(past, self._table.index_select(1, rows), own)
        if count > self._capacity:  # the cache is enlarged before the next step
            self._table = table
        else:
            self._table[:, :count] = table

    def _grow(self, rows: int) -> None:
        """Make room for twice the time, or for more rows; the past of rows that are gone is left behind.

        Where steps are not recorded (on a CPU), rows come and go at every step, and memory that is not written to costs
        nothing: there, for twice as many rows as there was room for.
        """
        time, device = self._time, self._table.device
        self._room = max(FIRST_ROOM, 2 * self._room) if time >= self._room else self._room
        if self.recordable:
            self._capacity = rows
        elif rows > self._capacity:
            self._capacity = max(rows, 2 * self._capacity)
        shape = (self._room, self._capacity, *self._shape)
        table = self._table[:time, :rows].long()  # no row has joined since the table was made
        times = torch.arange(time, device=device)[:, None]
        for number in range(2 * self._layers):
            larger = torch.empty(shape, dtype=self._dtype, device=device)
            if time > 0:
                larger[:time, :rows] = self._cache[number][times, table]
                self._cache[number] = larger
            else:
                self._cache.append(larger)
        self._table = torch.arange(self._capacity, dtype=torch.int32, device=device).repeat(self._room, 1)
