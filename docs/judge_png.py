"""Write docs/judge.png: the page of `mbrace judge` on the bundled demo. Run: python docs/judge_png.py"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import mbrace

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
from judge_server import Server  # noqa: E402


def main() -> None:
    demo = str(Path(str(mbrace.__file__)).parent / "data" / "demo.jsonl.xz")
    with tempfile.TemporaryDirectory() as folder:
        a, b = f"{folder}/standard.jsonl", f"{folder}/race.jsonl"
        decode = [sys.executable, "-m", "mbrace", "decode", demo, "--threads", "1"]
        subprocess.run([*decode, "--prune", "none", "-o", a], check=True)
        subprocess.run([*decode, "--alpha", "0.9", "-o", b], check=True)
        with Server([a, b, "--source", demo, "-o", f"{folder}/ratings.db"]) as server, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1120, "height": 600})
            page.goto(server.links[0] + "/rate")
            for done in range(1, 4):
                page.wait_for_selector("main[data-ready]")
                page.keyboard.press("3")
                page.wait_for_selector(f'progress[value="{done}"]')
            page.screenshot(path=HERE / "judge.png")
            browser.close()


if __name__ == "__main__":
    main()
