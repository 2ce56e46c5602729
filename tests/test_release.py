"""Packaging: workflows that can be read, versions that agree, a kernel without calls that only POSIX or GCC has."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mbrace

ROOT = Path(__file__).parent.parent
WORKFLOWS = ROOT / ".github" / "workflows"


@pytest.fixture
def check_release(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / ".github"))
    import check_release

    yield check_release
    sys.modules.pop("check_release")


def test_the_version_is_the_same_everywhere_but_in_a_changelog_without_releases(check_release: Any) -> None:
    told = check_release.problems(f"v{mbrace.__version__}")
    assert [line for line in told if not line.startswith("CHANGELOG.md")] == []


def test_a_tag_of_another_version_is_refused(check_release: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(check_release.problems("v9.9.9")) == len(check_release.PLACES)
    done = subprocess.run([sys.executable, str(ROOT / ".github" / "check_release.py"), "v9.9.9"], capture_output=True)
    assert done.returncode == 1


def test_workflows_call_targets_tests_and_workflows_that_exist() -> None:
    yaml = pytest.importorskip("yaml")
    targets = "".join(path.read_text() for path in (ROOT / "Makefile", ROOT / "native" / "hardening.mk"))
    for path in sorted(WORKFLOWS.glob("*.yml")):
        workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert workflow["permissions"] == {"contents": "read"}, path.name
        for job in workflow["jobs"].values():
            if "uses" in job:
                assert (ROOT / job["uses"]).exists(), job["uses"]
            for command in [step["run"] for step in job.get("steps", []) if "run" in step]:
                for test in re.findall(r"tests/\w+\.py", command):
                    assert (ROOT / test).exists(), test
                for target in re.findall(r"\bmake (\w+)", command):
                    assert re.search(rf"^{target}:", targets, re.MULTILINE), target


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_wheel_runs_the_tests_of_cibuildwheel() -> None:
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["cibuildwheel"]
    recipe = subprocess.run(["make", "-n", "wheel"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    line = next(line for line in recipe.splitlines() if "-m pytest" in line)
    tests = [word.removeprefix("{project}/") for word in shlex.split(wanted["test-command"])[1:]]
    assert shlex.split(line)[-len(tests) :] == tests


def test_only_the_publishing_job_may_sign_in_to_pypi() -> None:
    yaml = pytest.importorskip("yaml")
    allowed = []
    for path in sorted(WORKFLOWS.glob("*.yml")):
        for name, job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].items():
            if "id-token" in (job.get("permissions") or {}):
                allowed.append((path.name, name, job["environment"]))
    assert allowed == [("release.yml", "publish", "pypi")]


def test_the_kernel_has_no_calls_that_only_posix_or_the_runtime_of_gcc_has() -> None:
    guarded = {
        "cpu.hpp": ("__builtin_cpu",),
        "pool.cpp": ("aligned_alloc",),
    }  # where another way is written beside them
    for path in sorted((ROOT / "native").glob("*.[chi]*")):
        if path.suffix in (".cpp", ".hpp", ".inl"):
            text = path.read_text(encoding="utf-8")
            for word in (
                "unistd.h",
                "sys/",
                "pthread",
                "mmap",
                "__builtin_cpu",
                "aligned_alloc",
                "__builtin_bswap",
                "__int128",
            ):
                assert word not in text or word in guarded.get(path.name, ()), f"{path.name}: {word}"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
def test_without_a_compiler_the_build_names_the_package_that_has_one(tmp_path: Path) -> None:
    command = ["cmake", "-S", str(ROOT), "-B", str(tmp_path)]
    built = subprocess.run(command, env={**os.environ, "CXX": "none"}, capture_output=True, text=True)
    assert built.returncode != 0
    said = " ".join(built.stderr.split())
    assert "mbrace needs a C++20 compiler: install g++ 11 or later (Debian, Ubuntu: apt install build-essential" in said


@pytest.mark.skipif(shutil.which("x86_64-w64-mingw32-g++-posix") is None, reason="needs mingw-w64")
def test_the_kernel_builds_for_windows_and_runs_where_there_is_wine() -> None:
    done = subprocess.run(["make", "-f", "native/hardening.mk", "windows"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if shutil.which("wine"):
        assert "eight threads, and calls side by side, equal one thread" in done.stdout
