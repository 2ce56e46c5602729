"""The documentation site as `make docs` builds it: nothing from elsewhere, all settings, searches, accessibility."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from accessibility import WIDTHS, findings_of
from doc_blocks import ROOT

# What people type, and the pages (one of them, "" is the first) that should come first.
LIKELY: dict[str, tuple[str, ...]] = {
    "chrF": ("utilities", "kernel", "benchmarks"),
    "BLEU": ("utilities",),
    "COMET": ("guides/comet", "neural"),
    "XCOMET": ("cross",),
    "MetricX": ("cross",),
    "BLEURT": ("utilities", "cross"),
    "BERTScore": ("utilities",),
    "MBR": ("concepts", "methods", "guides/training-data", "migrating"),
    "minimum bayes risk": ("concepts",),
    "rerank": ("guides/comet", "cross"),
    "n-best": ("methods", "answers"),  # the same words as in "best of n"
    "best of n": ("answers",),
    "vLLM": ("servers",),
    "llama.cpp": ("answers", "servers"),
    "OpenAI": ("answers", "serve", "servers"),
    "ollama": ("answers", "servers"),
    "summarization": ("answers",),
    "self-consistency": ("answers", "guides/votes"),
    "majority vote": ("guides/votes",),
    "code generation": ("answers",),
    "DPO": ("guides/training-data",),
    "fine-tuning": ("guides/training-data",),
    "pandas": ("formats",),
    "polars": ("formats",),
    "parquet": ("formats",),
    "Ray": ("guides/ray", "scaling"),
    "resume": ("scaling",),
    "GPU": ("neural", "benchmarks", "scaling"),
    "pruning": ("concepts", "choosing"),
    "alpha": ("choosing",),
    "bootstrap": ("concepts", "kernel", "choosing"),
    "temperature": ("answers", "options", "servers", "models"),
    "epsilon sampling": ("servers", "models"),
    "batch size": ("neural", "guides/comet"),
    "install": ("quickstart", ""),
    "mbrs": ("migrating",),
    "comet-mbr": ("migrating",),
    "custom metric": ("utilities",),
    "significance": ("experiments",),
    "reproducible": ("faq",),
    "license": ("licences",),
    "error": ("formats", "faq", "servers"),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    return folder


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The site by HTTP, which its search needs."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    loaded = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//[^>]*>""")
    for page in site.rglob("*.html"):
        tags = [found[0] for found in loaded.finditer(page.read_text(encoding="utf-8"))]
        assert [tag for tag in tags if 'rel="canonical"' not in tag] == [], page.name


def test_no_script_asks_another_host(browser: Any, address: str) -> None:
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for name in ("", "guides/comet/", "api/", "benchmarks/"):
        page.goto(f"{address}{name}", wait_until="networkidle")
    page.close()
    assert len(asked) > 4
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []


@pytest.mark.parametrize("name", ["", "quickstart", "guides/comet", "servers", "commands", "options", "migrating"])
def test_code_and_tables_fit_a_window_of_1400_pixels(browser: Any, address: str, name: str) -> None:
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.goto(f"{address}{name and name + '/'}")
    cut = page.evaluate(
        """[...document.querySelectorAll("pre, code, table, .md-typeset__scrollwrap")]
            .filter(each => each.scrollWidth > each.clientWidth + 1 && each.clientWidth > 0)
            .map(each => each.innerText.slice(0, 60))"""
    )
    page.close()
    assert cut == []


def test_the_options_table_has_every_setting(site: Path) -> None:
    from mbrace.setting_fields import table_of
    from mbrace.settings import ModelSettings, Race, Sampling

    page = (site / "options" / "index.html").read_text(encoding="utf-8")
    names = {name for kind in (Race, Sampling, ModelSettings) for name in table_of(kind)} - {"pool"}
    assert {name for name in names if f"<code>{name}</code>" not in page} == set()


@pytest.mark.parametrize("name", ["index", "guides/comet"])
def test_alternatives_are_tabs(site: Path, name: str) -> None:
    page = (site / name / "index.html" if name != "index" else site / "index.html").read_text(encoding="utf-8")
    assert "tabbed-set" in page
    assert '<label for="__tabbed_1_2">' in page


def test_likely_searches_lead_to_the_right_page(browser: Any, address: str) -> None:
    page = browser.new_page()
    wrong = {}
    for words, expected in LIKELY.items():
        first = first_result(page, address, words).removeprefix(address).split("?")[0].split("#")[0].strip("/")
        if first not in expected:
            wrong[words] = first
    page.close()
    assert wrong == {}


def first_result(page: Any, address: str, words: str) -> str:
    """The address of the first result of a search."""
    page.goto(f"{address}?q={quote(words)}")
    result = page.locator("[data-md-component=search-result] a.md-search-result__link").first
    result.wait_for(state="attached", timeout=120_000)
    return str(result.evaluate("link => link.href"))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_nothing_on_any_page(browser: Any, site: Path, address: str, width: str, scheme: str) -> None:
    context = browser.new_context(
        viewport={"width": WIDTHS[width], "height": 844}, color_scheme=scheme, reduced_motion="reduce"
    )
    page = context.new_page()
    found = {}
    for file in sorted(site.rglob("index.html")):
        name = file.parent.relative_to(site).as_posix()
        page.goto(f"{address}{name}/")
        if findings := findings_of(page):
            found[name] = findings
    context.close()
    assert found == {}
