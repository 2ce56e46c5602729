"""Blocks of code in Markdown: how they are found, run, and at least parsed where they cannot be run.

A comment before a block says what is special about it:

    <!-- needs: a GPU -->       not run, for one of the REASONS; still parsed, and its names and options checked
    <!-- output -->             a text block: exactly what the block before it printed
    <!-- file: NAME -->         written to NAME for the blocks after it, instead of run
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mbrace
from mbrace.cli import main
from mbrace.cli.parser import make_parser

ROOT = Path(__file__).parent.parent
REASONS = ("a hub model", "a GPU", "a server", "a cluster", "the internet", "minutes", "a person", "your own folders")
FENCE = re.compile(r"^(?: *<!-- ([^>]*?) -->\n)?^( *)```(\S*)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^\n {4}(?![ *-]|\d+\. )\S[^\n]*\n", re.MULTILINE)
# Commands of others that a block which is not run may have; what can be checked of them is.
OTHERS = ("pip", "make", "python", "git", "cd", "vllm", "ray", "export", "docker")


@dataclass(frozen=True)
class Block:
    """A fenced block: where it begins, its language, its text, and the words of the comment before it."""

    line: int
    language: str
    code: str
    marker: str


def blocks_of(path: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = path.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        indent = match[2]
        code = re.sub(rf"^{indent}", "", match[4], flags=re.MULTILINE) if indent else match[4]
        found.append(Block(text.count("\n", 0, match.start(3)) + 1, match[3], code, match[1] or ""))
    return found


def unfenced(path: Path) -> list[str]:
    """Code blocks by indentation, which have no language and would not be run."""
    return [match.strip() for match in INDENTED.findall(FENCE.sub("", path.read_text(encoding="utf-8")))]


def run_page(path: Path) -> None:
    """Run every block of a page in the current folder, in order, or raise what went wrong with its line."""
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    for block in blocks_of(path):
        where = f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name}:{block.line}"
        try:
            if block.marker == "output":
                assert printed == block.code, f"printed {printed!r}"
            elif block.marker.startswith("file: "):
                Path(block.marker.removeprefix("file: ")).write_text(block.code, encoding="utf-8")
            elif block.marker.startswith("needs: "):
                assert block.marker.removeprefix("needs: ") in REASONS, f"a reason must be one of {REASONS}"
                _parse(block)
            else:
                printed = _run(block, names, where)
        except (Exception, SystemExit) as error:
            raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error


def _run(block: Block, names: dict[str, Any], where: str) -> str:
    """Run a block and return what it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        if block.language == "python":
            exec(compile("\n" * block.line + block.code, where, "exec"), names)
        elif block.language == "sh":
            for line in _lines(block.code):
                _run_line(line, out)
        elif block.language == "json":
            json.loads(block.code)
        elif block.language == "yaml":
            import yaml

            yaml.safe_load(block.code)
        else:
            assert block.language in ("text", "bibtex", "toml"), f"language {block.language!r} cannot be run: mark it"
    return out.getvalue()


def _lines(code: str) -> list[str]:
    """Commands of a shell block, continued lines joined."""
    joined = code.replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def _run_line(line: str, out: io.StringIO) -> None:
    words = shlex.split(line, comments=True)
    if words[0] == "mbrace" and not {"|", ">", "<", "&&", ";"} & set(words):
        status = main(words[1:])  # here, so that torch is loaded once
        assert status == 0, f"`{line}` ended with {status}"
        return
    assert {"mbrace", ">"} & set(words), f"`{line}`: not a command of ours; mark the block"
    shell = f'mbrace() {{ {shlex.quote(sys.executable)} -m mbrace "$@"; }}\nset -euo pipefail\n{line}'
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True)
    assert done.returncode == 0, f"`{line}` ended with {done.returncode}: {done.stderr[-500:]}"
    out.write(done.stdout)


def _parse(block: Block) -> None:
    """What can be checked of a block that is not run."""
    if block.language == "python":
        _check_names(ast.parse(block.code))
    elif block.language in ("sh", "console"):
        lines = _lines(block.code)
        if block.language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        assert lines, "no command"
        for line in lines:
            _parse_line(line)
    else:
        raise AssertionError(f"language {block.language!r} needs no mark")


def _parse_line(line: str) -> None:
    for part in re.split(r" (?:\||&&) ", line):
        words = shlex.split(part, comments=True)
        if words[0] == "mbrace":
            make_parser().parse_args(words[1 : words.index(">") if ">" in words else None])
        elif words[0] == "make":
            makefile = (ROOT / "Makefile").read_text() + (ROOT / "native" / "hardening.mk").read_text()
            for target in words[1:]:
                assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), f"make {target}: no such target"
        elif words[0] == "python" and words[1] != "-m":
            assert (ROOT / words[1]).exists(), f"{words[1]}: no such file"
        elif words[:2] == ["pip", "install"]:
            for extra in re.findall(r"\[([\w,]+)\]", part):
                text = (ROOT / "pyproject.toml").read_text()
                for name in extra.split(","):
                    assert re.search(rf"^{name} = \[", text, re.MULTILINE), f"no extra {name}"
        else:
            assert words[0] in (*OTHERS, "echo", "cat"), f"`{part}`: unknown command"


def _check_names(tree: ast.AST) -> None:
    """Names of mbrace that a block uses exist, and functions take the keywords that they are given."""
    nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "mbrace":
            assert hasattr(mbrace, node.attr), f"mbrace.{node.attr} does not exist"
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id == "mbrace":
                parameters = inspect.signature(getattr(mbrace, node.func.attr)).parameters
                if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
                    for keyword in node.keywords:
                        assert keyword.arg in parameters, f"mbrace.{node.func.attr} has no {keyword.arg}"


def small_files(folder: Path, rows: list[dict[str, Any]]) -> None:
    """The files that blocks read: three real records of 24 hypotheses and 32 pseudo-references, in every form."""
    import gzip

    small = [
        {**row, "hypotheses": row["hypotheses"][:24], "pseudo_references": row["pseudo_references"][:32]}
        for row in rows[:3]
    ]
    lines = [json.dumps(row).encode() + b"\n" for row in small]
    (folder / "candidates.jsonl").write_bytes(b"".join(lines))
    (folder / "part-0.jsonl.gz").write_bytes(gzip.compress(lines[0] + lines[1]))
    (folder / "part-1.jsonl.gz").write_bytes(gzip.compress(lines[2]))
    for name, texts in (
        ("sources.txt", ["Guten Morgen.", "Ein Hund.", "Danke."]),  # short: some blocks translate them
        ("references.txt", [row["reference"] for row in small]),
        ("hypotheses.txt", [text for row in small for text in row["hypotheses"][:8]]),
        ("samples.txt", [text for row in small for text in row["pseudo_references"][:8]]),
        ("translations.txt", [row["hypotheses"][0] for row in small]),
    ):
        (folder / name).write_text("\n".join(texts) + "\n", encoding="utf-8")


def broken_links(path: Path) -> list[str]:
    """Links and pictures of a page to files that are not there."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    targets = [*re.findall(r"\]\(([^)\s]+)\)", text), *re.findall(r'(?:src|srcset|href)="([^"\s]+)"', text)]
    local = [target for target in targets if not re.match(r"https?://|#|mailto:", target)]
    return [target for target in local if not os.path.exists(path.parent / target.split("#")[0])]
