"""What mkdocs asks while it builds the site: generated pages, and links from pages into the repository.

The command reference is made from the parsers, the Python reference from `mbrace.__all__` and the notebook's page from
the notebook at every build, so none can be out of date. Pages link to files outside docs/ as a clone has them
(`../bench/results/chrf.md`); in the site these become links to the repository named in pyproject.toml. A file that is
not there fails the build.
"""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
TABS = re.compile(r"<!-- tabs -->\n(.*?)\n<!-- end -->", re.DOTALL)
SETTINGS = re.compile(r"<!-- settings -->\n.*?\n<!-- end -->", re.DOTALL)
LINK = re.compile(r"(\]\()(\.\./[^)#\s]+|[\w/]+\.ipynb)(#[^)\s]*)?(\))")


def repository() -> str:
    """The address in pyproject.toml's project.urls."""
    found = re.search(r'^Repository = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise PluginError("pyproject.toml: project.urls has no Repository")
    return found[1]


def on_config(config: Any) -> Any:
    """The repository's address is written in one place."""
    config.repo_url = repository()
    config.repo_name = "mbrace"
    config.edit_uri = ""
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add a page for every notebook."""
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        content = notebook_page(json.loads(path.read_text(encoding="utf-8")))
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put in what is generated, and make links to files of the repository that are no pages of the site."""
    for marker, generate in GENERATED.items():
        if marker in markdown:
            page.meta["search"] = {"boost": 0.1}  # guides come before references
            markdown = markdown[: markdown.index("\n\n")] + "\n\n" + generate()
    markdown = SETTINGS.sub(lambda _: settings_reference(), markdown)
    markdown = TABS.sub(lambda found: tabs(found[1]), markdown)
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def link(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(folder / found[2]))
        if target.is_relative_to(ROOT / "docs"):
            return found[0].replace(".ipynb", ".md")
        if not target.exists():
            raise PluginError(f"{page.file.src_uri}: {found[2]} is not in the repository")
        kind = "tree" if target.is_dir() else "blob"
        address = f"{repository()}/{kind}/main/{target.relative_to(ROOT).as_posix()}"
        return f"{found[1]}{address}{found[3] or ''}{found[4]}"

    return LINK.sub(link, markdown)


def tabs(text: str) -> str:
    """Tabs of what GitHub shows one after another: a paragraph in bold begins a tab."""
    lines = []
    for line in text.split("\n"):
        title = re.fullmatch(r"\*\*(.+)\*\*", line)
        lines.append(f'=== "{title[1]}"' if title else f"    {line}".rstrip())
    return "\n".join(lines)


def on_post_page(output: str, **_: Any) -> str:
    """Name the theme's search dialog for screen readers, and make an empty corner of a table no heading; the theme's
    script shall not ask GitHub for the number of stars."""
    output = re.sub(r"<th([^>]*)></th>", r"<td\1></td>", output)
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    ).replace(' data-md-component="source"', "")


def command_reference() -> str:
    """Every command's help, as a terminal of 100 columns shows it."""
    from mbrace.cli.parser import make_parser, parsers_by_command

    os.environ["COLUMNS"] = "100"
    parser = make_parser()
    parts = [
        "Made from the parsers when this page was built; `mbrace COMMAND --help` shows the same.",
        f"```text\n{parser.format_help().rstrip()}\n```",
    ]
    for name, command in parsers_by_command(parser).items():
        parts.append(f"## mbrace {name}\n\n```text\n{command.format_help().rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def settings_reference() -> str:
    """Every setting, from the fields of their classes."""
    from mbrace.answers import Answering
    from mbrace.setting_fields import options_table
    from mbrace.settings import ModelSettings, Network, Race, Sampling

    subjects = {
        "Races": Race,
        "Candidates of a model": Sampling,
        "Models and servers": ModelSettings,
        "Answers": Answering,
        "Metrics": Network,
    }
    return "\n\n".join(f"## {subject}\n\n{options_table(kind)}" for subject, kind in subjects.items())


def python_reference() -> str:
    """Directives of mkdocstrings for every public name, by subject."""
    tree = ast.parse((ROOT / "src" / "mbrace" / "__init__.py").read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    modules = {alias.name: str(node.module) for node in imports for alias in node.names}
    import mbrace

    left = {name for name in mbrace.__all__ if modules[name] != "mbrace._native"}  # compiled: nothing to read
    parts = []
    for subject, prefixes in SUBJECTS:
        inside = tuple(f"{prefix}." for prefix in prefixes)
        names = sorted((n for n in left if f"{modules[n]}.".startswith(inside)), key=lambda n: (modules[n], n))
        left -= set(names)
        parts.append(f"## {subject}")
        parts += [f"::: {modules[name]}.{name}" for name in names]
    if left:
        raise PluginError(f"docs/site_pages.py: no subject for {', '.join(sorted(left))}")
    return "\n\n".join(parts) + "\n"


SUBJECTS = (
    ("Decoding", ("mbrace.api", "mbrace.jobs")),
    ("Records and answers", ("mbrace.records", "mbrace.result")),
    ("Settings, pruning and methods", ("mbrace.settings", "mbrace.prune", "mbrace.methods")),
    ("Utilities", ("mbrace.utilities",)),
    ("Models and servers", ("mbrace.models", "mbrace.servers")),
    ("What a utility or a sampler must have", ("mbrace.utility", "mbrace.sampler")),
    ("Others", ("mbrace",)),
)
GENERATED = {"<!-- commands -->": command_reference, "<!-- api -->": python_reference}


def notebook_page(notebook: dict[str, Any]) -> str:
    """The cells of a notebook as Markdown: text, code, and the output of each."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            text = "".join(output.get("text", output.get("data", {}).get("text/plain", "")))
            if text:
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"
