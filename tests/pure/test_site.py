"""The look at the site finds what is wrong with a page, and nothing with one that is right."""

import shutil
import sys
from pathlib import Path

import pytest
from processes import ROOT, finish

BROWSER = shutil.which("chromium-headless-shell") or shutil.which("chromium")
LOOK = [sys.executable, ROOT / "tests/outside/site.py"]
PICTURE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="300" height="9"><rect width="300" height="9"/></svg>'
)
IMAGE = '<img src="there.svg">'
LINE = '<pre style="width: 90px; overflow: {}">a line that is too long for the place that it has</pre>'
RIGHT = [
    IMAGE,
    f'<div style="width: 300px"><span>{IMAGE}</span></div>',
    '<div style="width: 90px"><img src="there.svg" style="max-width: 100%"></div>',
    LINE.format("auto"),
    '<p style="position: absolute; width: 1px; overflow: hidden">for those who hear the page</p>',
]
DARK = f"<style>[data-theme=dark] pre {{ overflow: clip !important }}</style>{LINE.format('auto')}"
SIZES = [(width, theme) for theme in ("light", "dark") for width in (400, 800, 1400)]
WRONG = {
    "broken": ('<img src="nowhere.svg">', []),
    "cut": (LINE.format("hidden"), SIZES),
    "dark": (DARK, SIZES[3:]),
    "picture": (f'<div style="width: 280px; padding: 25px"><a>{IMAGE}</a></div>', SIZES),
    "wide": ('<div style="width: 500px">Wide.</div>', [(400, "light"), (400, "dark")]),
}


@pytest.mark.once
@pytest.mark.skipif(BROWSER is None, reason="no headless chromium")
def test_the_pages_that_are_wrong_are_named_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "there.svg").write_text(PICTURE)
    for name, content in {
        "right": "\n".join(RIGHT),
        **{name: each for name, (each, _) in WRONG.items()},
    }.items():
        (tmp_path / f"{name}.html").write_text(f"<!doctype html><body>{content}</body>")
    done = finish([*LOOK, tmp_path], 100)
    assert done.returncode == 1, done.stderr
    count, *found = done.stdout.splitlines()
    assert count.startswith("6 pages")
    want = {f"/{name}.html, {width}, {theme}" for name, (_, at) in WRONG.items() for width, theme in at}
    assert {line.partition(":")[0] for line in found} == {*want, "/broken.html"}
    assert len(found) == len(want) + 1
    for words in ("no picture ", "the page, 5", "picture ", "cut off: a line"):
        assert any(f": {words}" in line for line in found), words


@pytest.mark.once
@pytest.mark.parametrize(("env", "status"), [("", 0), ("true", 1)])
def test_without_a_browser_it_says_so_and_fails_only_where_nobody_reads_it(env: str, status: int) -> None:
    done = finish([*LOOK, "."], 20, env={"PATH": "", "CI": env})
    assert done.returncode == status
    assert done.stdout == "no headless chromium: the pages were not looked at\n"
