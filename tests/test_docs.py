"""Pages do what they say: every block of code runs or is parsed, links lead somewhere, figures are from the tables."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest
from doc_blocks import ROOT, blocks_of, broken_links, run_page, small_files, unfenced

DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "custom_generate" / "README.md",
    *sorted(DOCS.rglob("*.md")),
]
NOTEBOOKS = sorted(DOCS.rglob("*.ipynb"))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_of_a_page_runs_or_says_what_it_needs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, demo_rows: list[dict[str, Any]]
) -> None:
    small_files(tmp_path, demo_rows)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert unfenced(page) == [], "fence it and name its language"
    run_page(page)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("```python\nraise ValueError('no')\n```", "page.md:1: ValueError: no"),
        ("\n```sh\nmbrace decode gone.jsonl -o out.jsonl\n```", "page.md:2: AssertionError: `mbrace decode gone.jsonl"),
        ("```sh\nrm file\n```", "not a command of ours; mark the block"),
        ("```\nwhat\n```", "language '' cannot be run"),
        ("<!-- needs: luck -->\n```python\nx = 1\n```", "a reason must be one of"),
        ("<!-- needs: a GPU -->\n```sh\nmbrace decode in.jsonl --gone\n```", "--gone: no such option"),
        ("<!-- needs: a GPU -->\n```python\nmbrace.Gone()\n```", "mbrace.Gone does not exist"),
        ("<!-- needs: a GPU -->\n```python\nmbrace.ChrF(gone=1)\n```", "mbrace.ChrF has no gone"),
        ("<!-- needs: minutes -->\n```sh\nmake gone\n```", "make gone: no such target"),
        ("<!-- needs: the internet -->\n```sh\npip install 'mbrace[gone]'\n```", "no extra gone"),
        ("```python\nprint(1)\n```\n\n<!-- output -->\n```text\n2\n```", "printed '1\\n'"),
    ],
)
def test_a_block_that_is_wrong_fails(block: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(block + "\n")
    with pytest.raises(AssertionError, match=re.escape(message)):
        run_page(page)


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=name)
def test_lines_of_code_fit_the_column_of_the_site(page: Path) -> None:
    lines = [line for block in blocks_of(page) if block.language != "text" for line in block.code.splitlines()]
    assert [line for line in lines if len(line) > 95] == []


def test_a_block_without_a_fence_is_found(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("Text:\n\n    mbrace decode x\n\nand\n\n```sh\n    mbrace demo\n```\n")
    assert unfenced(tmp_path / "page.md") == ["mbrace decode x"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=name)
def test_a_notebook_prints_what_it_shows(
    notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    assert cells
    for number, cell in enumerate(cells, 1):
        exec(compile("".join(cell["source"]), f"{notebook.name}, cell {number}", "exec"), names)
        shown = "".join(text for output in cell["outputs"] for text in output["text"])
        assert capsys.readouterr().out == shown, f"cell {number}; python docs/run_notebooks.py writes it again"


OTHER_PAGES = ["ARCHITECTURE.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md"]
OTHER_PAGES += [
    "results/RESULTS.md",
    "results/STRINGS.md",
    "results/METHODS.md",
    "results/rules.md",
    "experiments/candidates/README.md",
    "bench/data/README.md",
]


@pytest.mark.parametrize(
    "page",
    [*PAGES, *(ROOT / page for page in OTHER_PAGES), *sorted((ROOT / "bench" / "results").glob("*.md"))],
    ids=name,
)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_the_menu_has_every_page() -> None:
    menu = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    notebooks = {path.relative_to(DOCS).with_suffix(".md").as_posix() for path in NOTEBOOKS}
    assert menu == pages | notebooks


def test_figures_and_tables_of_the_readme_and_the_benchmarks_are_the_measured_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import readme

    for path, text in readme.written().items():
        assert path.read_text(encoding="utf-8") == text, f"{name(path)}: python bench/readme.py writes it again"


STUDIES = [*sorted((ROOT / "bench").glob("*.py")), *sorted((ROOT / "experiments").glob("*.py"))]


@pytest.mark.parametrize("path", STUDIES, ids=name)
def test_what_a_bench_or_a_study_imports_is_there(path: Path) -> None:
    """Those on a GPU, and those with other packages, are not run by the tests."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        beside = path.with_name(f"{node.module}.py")
        if beside.exists():
            tree = ast.parse(beside.read_text(encoding="utf-8"))
            known = {found.id for found in ast.walk(tree) if isinstance(found, ast.Name)}
            known |= {found.name for found in tree.body if isinstance(found, ast.FunctionDef | ast.ClassDef)}
        elif node.module.split(".")[0] == "mbrace":
            module = importlib.import_module(node.module)
            folders = getattr(module, "__path__", [])
            known = {*dir(module), *(found.name for found in pkgutil.iter_modules(folders))}
        else:
            continue
        assert {alias.name for alias in node.names} - known == set(), node.module


def test_pictures_of_the_race_are_of_the_recorded_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    import race_pictures

    race = race_pictures.recorded()
    assert len(race.steps[0].utilities) == len(race.hypotheses)
    assert race.answer in race.steps[-1].survivors
    for picture, draw in (("race.svg", race_pictures.moving), ("one_race.svg", race_pictures.lines)):
        assert (DOCS / "pictures" / picture).read_text(encoding="utf-8") == draw(race), "python docs/race_pictures.py"


def test_the_readme_is_short_and_its_links_work_on_pypi() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count("\n") <= 90
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    repository = re.findall(r'^Repository = "(.+)"$', settings, re.MULTILINE)[0]
    substitutions = re.findall(r"^pattern = '(.+)'\nreplacement = '(.+)'$", settings, re.MULTILINE)
    assert len(substitutions) == 2
    for pattern, replacement in substitutions:
        text = re.sub(pattern, replacement, text)
    targets = re.findall(r"\]\(([^)]+)\)", text)
    raw = repository.replace("github.com", "raw.githubusercontent.com") + "/main/"
    pictures = [target for target in targets if target.startswith(raw)]
    pages = [target for target in targets if target.startswith(f"{repository}/blob/main/")]
    assert pictures
    assert len(pages) > 5
    assert all(target.startswith("https://") for target in targets)
    for target, start in [*((t, raw) for t in pictures), *((t, f"{repository}/blob/main/") for t in pages)]:
        assert (ROOT / target.removeprefix(start)).is_file(), target
