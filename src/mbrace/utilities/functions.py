"""A user's own function as a utility, by name: `package.module:function` or `path/to/file.py:function`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from zlib import crc32

from mbrace.errors import UTILITY, UserError
from mbrace.utility import Pairwise, Utility

BATCH_SUFFIX = ":batch"


def load_function(text: str) -> Utility:
    """The utility that `text` names: `package.module:function` or `path/to/file.py:function`.

    The function is called as `Pairwise` calls it: `function(hypothesis, reference)`, with the source as a third
    argument if it has one. It takes and returns lists (`batch=True`) if it has a true attribute `batch`, or if `:batch`
    is added to its name. The name may also be that of a utility object. Modules are looked for in the current folder
    first; a file may import other files of its folder.
    """
    name, batch = text, False
    if name.endswith(BATCH_SUFFIX):
        name, batch = name.removesuffix(BATCH_SUFFIX), True
    module, colon, attribute = name.rpartition(":")
    if not (colon and module and attribute):
        raise UserError(f"{UTILITY} {text}: give package.module:function or path/to/file.py:function")
    is_file = module.endswith(".py") or os.sep in module
    found: object = _from_file(text, Path(module)) if is_file else _from_module(text, module)
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise UserError(
                f"{UTILITY} {text}: there is no {attribute} in {module}; name a function that it has"
            ) from None
    if isinstance(found, Utility) and not isinstance(found, type):
        if batch:
            raise UserError(f"{UTILITY} {text}: {BATCH_SUFFIX} is for functions; {attribute} is a utility already")
        return found
    if isinstance(found, type) or not callable(found):
        kind = "a class" if isinstance(found, type) else f"of type {type(found).__name__}"
        raise UserError(f"{UTILITY} {text}: {attribute} is {kind}; name a function(hypothesis, reference) or a utility")
    return Pairwise(found, batch=batch or bool(getattr(found, "batch", False)), name=text)


def _from_file(text: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"{UTILITY} {text}: {path}: no such file; give the path of a Python file")
    path = path.resolve()
    # two files may have the same name, and neither may hide an installed module
    name = f"mbrace_utility_{path.stem}_{crc32(os.fsencode(path)):x}"
    specification = importlib.util.spec_from_file_location(name, path)
    if specification is None or specification.loader is None:
        raise UserError(f"{UTILITY} {text}: {path}: not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    try:
        with _searched_first(path.parent):
            specification.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UserError(f"{UTILITY} {text}: importing {path} failed: {type(error).__name__}: {error}") from error
    return module


def _from_module(text: str, name: str) -> ModuleType:
    try:
        with _searched_first(Path.cwd()):
            return importlib.import_module(name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):  # the module itself, or its package
            raise UserError(
                f"{UTILITY} {text}: there is no module {missing}; "
                "install it, run from the folder it is in, or give the path of its file"
            ) from error
        raise UserError(f"{UTILITY} {text}: importing {name} failed: {type(error).__name__}: {error}") from error


@contextmanager
def _searched_first(folder: Path) -> Iterator[None]:
    """Inside, Python looks for modules in this folder first."""
    before = list(sys.path)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = before
