"""What others meet first is right: citation, recipe, workflow and links agree with the package."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import hpcomm

ROOT = Path(__file__).parents[1]
_FILE = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, TOOLS = _FILE["project"], _FILE["tool"]

yaml = pytest.importorskip("yaml")


@pytest.fixture(scope="module")
def recipe():
    return yaml.safe_load((ROOT / "recipe/recipe.yaml").read_text())


def test_citation_recipe_and_pkg_config_name_this_version_and_licence(recipe):
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == recipe["context"]["version"] == hpcomm.__version__
    assert f"\nVersion: {hpcomm.__version__}\n" in (ROOT / "hpcomm/mpmd/fortran/hpcomm.pc").read_text()
    assert citation["license"] == recipe["about"]["license"] == PROJECT["license"]
    assert citation["repository-code"] == recipe["about"]["homepage"] == PROJECT["urls"]["Source"]


def test_the_recipe_needs_what_the_package_needs(recipe):
    needs = {line.replace(" ", "") for line in recipe["requirements"]["run"]}
    assert needs == {*PROJECT["dependencies"], f"python{PROJECT['requires-python']}"}
    [command] = recipe["build"]["python"]["entry_points"]
    assert command == f"hpcomm = {PROJECT['scripts']['hpcomm']}"


def test_the_workflow_calls_what_developers_call_on_every_python():
    workflow = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())
    makefile = (ROOT / "Makefile").read_text()
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    made = [command for command in commands if command.startswith("make")]
    assert {"make check", "make docs", "make wheels"} < set(made)
    for command in made:
        assert re.search(rf"^{command.split()[1]}:", makefile, re.MULTILINE), command
    fetch, _, docs, *_ = workflow["jobs"]["docs"]["steps"]
    assert re.search(r"apt-get install .*\bchromium\b", fetch["run"])
    assert docs == {"run": "make docs"}  # where CI is set it fails without a browser
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]
    known = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)]
    assert matrix == {"python": known, "mpi": ["openmpi", "mpich"]}


def test_templates_have_what_a_tracker_asks_for():
    for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.md"):
        head = yaml.safe_load(path.read_text().split("---")[1])
        assert set(head) == {"name", "about"}, path


def test_the_changelog_has_this_version_and_fragments_are_named_as_it_wants_them():
    text = (ROOT / "CHANGELOG.md").read_text()
    settings = TOOLS["towncrier"]
    first = re.search(
        r"^## (\S+)", text.partition("<!-- towncrier release notes start -->\n")[2], re.MULTILINE
    )
    assert first
    assert first[1] == hpcomm.__version__
    kinds = {each["directory"] for each in settings["type"]}
    apart = {ROOT / settings["template"], ROOT / settings["directory"] / "README.md"}
    for path in {*(ROOT / settings["directory"]).iterdir()} - apart:
        assert re.fullmatch(rf"[a-z0-9-]+\.({'|'.join(kinds)})\.md", path.name), path
        assert not path.read_text().startswith("-"), f"{path}: it becomes one entry of a list by itself"


def test_pages_that_are_made_have_keys_of_specs_what_is_new_and_the_readmes_examples(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "docs"), *sys.path])
    import _pages

    keys = re.findall(r"^\| `(\w+)` \| \S", _pages.spec(), re.M)
    assert {"timeout", "command", "mapping", "uncovered"} <= {*keys}
    assert "\n- " in _pages.changelog()
    start = _pages.of_readme((ROOT / "docs/index.md").read_text())
    tabs = re.findall(r"{tab-item} (.*)\n(.*)", start)
    assert tabs[0] == (
        "Add up an array over all ranks",
        "`x` may be a torch tensor or a CuPy array, and the result is of the same kind.",
    )
    assert len(tabs) == 4
    assert "| compared with | hpcomm |" in start


@pytest.mark.parametrize("script", ["mpi/random_programs", "mpi/random_mixtures", "mpi_jobs/random_kills"])
def test_scripts_of_random_programs_begin_without_pytest(script):
    """Nothing but their own folder is on the path then."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [sys.executable, str(ROOT / f"tests/{script}.py"), "--help"]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert "usage:" in done.stdout, done.stderr
