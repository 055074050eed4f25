"""Pages made when the site is built: apps, command line, changelog. They are written to docs/_made."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from hpcomm.job.spec.schema import FIELD, GRID, JOB, PROGRAM, Schema, wanted
from hpcomm.tools.commands import COMMANDS

DOCS = Path(__file__).parent
ROOT = DOCS.parent
MADE = DOCS / "_made"
HOME = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
ON_SITE = {"apps/README.md": "apps.md", "hpcomm/apps/README.md": "package_apps.md"}  # below MADE
APPS = ROOT / "hpcomm/apps"
APP_PAGES = "\n```{toctree}\n:hidden:\n:glob:\n\napps/*\n```\n"
PICTURES = (".gif", ".png", ".svg")
RELEASES = "<!-- towncrier release notes start -->"  # in CHANGELOG.md
KINDS = {"added": "Added", "changed": "Changed", "fixed": "Fixed", "removed": "Removed"}

_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")
_OPTION = re.compile(r"^((?! {4}).*?)(?<!\S)(--\w[\w-]*)", re.MULTILINE)  # outside of indented blocks
_OF_README = re.compile(r"<!-- README: (.*) -->")
_EXAMPLE = re.compile(r"^\*\*(.*?)(?:\*\*|(?=\.\*\*))", re.MULTILINE)  # the words that begin it
_ROW = re.compile(r"^\| `([a-z]\w*)(?:\.py)?` \|", re.MULTILINE)


def make() -> None:
    """Write all pages of this module, and take away those of the last time."""
    shutil.rmtree(MADE, ignore_errors=True)
    for readme, page in ON_SITE.items():
        text = links((ROOT / readme).read_text(), ROOT / readme, MADE / page)
        write(page, _ROW.sub(to_its_page, text) + (APP_PAGES if page == "package_apps.md" else ""))
    for path in sorted(APPS.glob("[a-z]*.py")):
        write(f"apps/{path.stem}.md", app(path))
    write("command_line.md", command_line())
    write("spec.md", spec())
    write("changelog.md", changelog())


def write(name: str, text: str) -> None:
    """Write a page below docs/_made."""
    path = MADE / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def of_readme(text: str) -> str:
    """Text of a page, in which a section that it names stands as in README; examples become tabs."""

    def section(found: re.Match[str]) -> str:
        readme = ROOT / "README.md"
        body = re.split(rf"^## {found[1]}\n", readme.read_text(), flags=re.MULTILINE)[1]
        body = links(body.partition("\n## ")[0].strip("\n"), readme, DOCS / "index.md")
        before, *parts = _EXAMPLE.split(body)
        tabs = [
            f"````{{tab-item}} {title}\n{(title + rest).removeprefix(f'{title}.** ').rstrip()}\n````\n"
            for title, rest in zip(parts[::2], parts[1::2], strict=True)
        ]
        return "\n".join([before, "`````{tab-set}", *tabs, "`````"]) if tabs else body

    return _OF_README.sub(section, text)


def links(text: str, written: Path, read: Path) -> str:
    """Text of a file, with relative links that hold on the page `read`.

    What is no page and no picture is linked to in the repository. A target that does not exist stays as it
    is, for Sphinx to warn of.
    """

    def lead(found: re.Match[str]) -> str:
        target = (written.parent / found[1]).resolve()
        if not target.is_relative_to(ROOT) or not target.exists():
            return found[0]
        name = str(target.relative_to(ROOT))
        if name in ON_SITE:
            target = MADE / ON_SITE[name]
        elif not (target.suffix in PICTURES or (target.suffix == ".md" and DOCS in target.parents)):
            return f"]({HOME}/blob/main/{name})"
        return f"]({os.path.relpath(target, read.parent)}{found[2] or ''})"

    return _LINK.sub(lead, text)


def to_its_page(row: re.Match[str]) -> str:
    """Beginning of a table's row, its name linked to the page of that program if there is one."""
    return f"| [`{row[1]}`](apps/{row[1]}.md) |" if (APPS / f"{row[1]}.py").exists() else row[0]


def docstring(path: Path) -> tuple[str, str]:
    """First sentence of a program's docstring, and the rest."""
    title, _, rest = (ast.get_docstring(ast.parse(path.read_text())) or path.stem).partition("\n")
    return title, _OPTION.sub(r"\1`\2`", rest.strip("\n"))


def app(path: Path) -> str:
    """Page of a program that comes with the package: what it says of itself, and its source."""
    title, rest = docstring(path)
    code = ast.parse(path.read_text()).body
    file = os.path.relpath(path, MADE / "apps")
    source = f"```{{literalinclude}} {file}\n:language: python\n:lines: {code[1].lineno}-\n```\n"
    told = f"For those who learn from programs. {title}\n\n{rest}\n\n{output(path.stem)}"
    return f"# {path.stem}\n\n{told}## Source\n\n{source}"


def output(name: str) -> str:
    """What docs/_gallery.py has kept of a program: what it prints and draws."""
    text, picture = (DOCS / f"pictures/apps/{name}{suffix}" for suffix in (".txt", ".png"))
    if not text.exists():
        return ""
    drawn = f"![{name}]({os.path.relpath(picture, MADE / 'apps')})\n\n" if picture.exists() else ""
    return f"## What it prints\n\n```text\n{text.read_text()}```\n\n{drawn}"


def command_line() -> str:
    """What `hpcomm COMMAND --help` says, for all commands."""
    whom = "For looking up a command, or an option of one. How to start jobs: [launching](../launching.md).\n"
    parts = ["# Command line\n", whom, help_of(), "`hpcomm` is also `python -m hpcomm`.\n"]
    parts += [f"## hpcomm {name}\n\n{help_of(name)}" for name in COMMANDS]
    return "\n".join(parts)


def spec() -> str:
    """All keys of a spec, as hpcomm's schema has them."""
    parts = [
        "# Keys of a spec\n",
        "For whoever writes a spec for `hpcomm run`: [Several programs](../mpmd.md#a-spec) has an example.\n",
    ]
    for head, keys in (
        ("[job]", JOB),
        ("[program.NAME]", PROGRAM),
        ("[grid.NAME]", GRID),
        ("[[field]]", FIELD),
    ):
        parts += [
            f"## {head}\n",
            f"{keys['description'].capitalize()}.\n",
            "| key | is | what it does |",
            "|---|---|---|",
        ]
        parts += [row(key, of, key in keys.get("required", ())) for key, of in keys["properties"].items()]
        rules = dict.fromkeys(f"- {each['description']}" for each in keys.get("allOf", ()))
        parts += [*["\nIt is refused if it has:\n"] * bool(rules), *rules, ""]
    return "\n".join(parts)


def row(key: str, of: Schema, needed: bool) -> str:
    default = ", needed" if needed else f" ({json.dumps(of['default'])})" if "default" in of else ""
    return f"| `{key}` | {wanted(of)}{default} | {of['description']} |"


def help_of(*words: str) -> str:
    """The help of a command, as a block."""
    environment = {**os.environ, "COLUMNS": "88", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "hpcomm", *words, "--help"]
    text = subprocess.check_output(command, cwd=ROOT, env=environment, text=True)
    return f"```\n{text.rstrip()}\n```\n"


def changelog() -> str:
    """CHANGELOG.md, and before it what is new since, by kind."""
    parts = []
    for kind, title in KINDS.items():
        fragments = sorted((ROOT / "changelog.d").glob(f"*.{kind}.md"))
        items = [item(path.read_text().strip()) for path in fragments]
        parts += [f"### {title}\n", *items, ""] if items else []
    new = "\n".join(["## Not released yet\n", *parts]) if parts else ""
    file = ROOT / "CHANGELOG.md"
    return links(file.read_text().replace(RELEASES, new), file, MADE / "changelog.md")


def item(text: str) -> str:
    """A fragment as an item of a list, which some are already."""
    return text if text.startswith("- ") else "- " + text.replace("\n", "\n  ")
