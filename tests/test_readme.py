"""What the documents show is what happens: every python block runs under two ranks.

A text block right after a python block is what the program prints: each of its lines must come, in this
order. If it shows how a job failed, the program must fail; otherwise it must end with status 0. Those that do
not fail run in one job, one after the other.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import finish

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))
from _sentences import docstrings, found, of_docstring, of_tables, sentences, words  # noqa: E402

DOCUMENTS = [
    "README.md",
    *(
        f"docs/{name}.md"
        for name in (
            "tour",
            "concepts",
            "errors",
            "algorithms",
            "ring_and_tree",
            "meshes",
            "grids",
            "mpi4py",
            "spawn",
            "torch",
            "torch_tutorials",
            "within",
            "shared",
            "pool",
            "random",
            "types",
            "notebooks",
        )
    ),
]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for page in (ROOT / "docs").rglob("*.md") if "_made" not in page.parts),
]
IN_ONE_JOB = ROOT / "tests/examples_in_one_job.py"
TIMEOUT_S = 240  # for all of them: several times what they take on a quiet machine

_PROGRAM = re.compile(r"# \w+\.py\n")  # one of several, which tests/mpmd/test_docs.py starts together
FENCE = re.compile(r"^```(\w*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


def is_failure(shown: str) -> bool:
    """Whether what a document shows is how a job fails."""
    return re.search(r"^(Traceback|hpcomm\.errors\.|hpcomm: rank)", shown, re.MULTILINE) is not None


@dataclass(frozen=True)
class Example:
    """One program in a document and what the document says it prints."""

    document: str
    line: int
    code: str
    shown: str

    @property
    def fails(self) -> bool:
        return is_failure(self.shown)

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def examples(document: str) -> list[Example]:
    """The python blocks of a document, each with the text block that follows it directly, if any."""
    text = (ROOT / document).read_text(encoding="utf-8")
    blocks = list(FENCE.finditer(text))
    found = []
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if block[1] != "python" or _PROGRAM.match(block[2]):
            continue
        follows = after is not None and after[1] == "text" and not text[block.end() : after.start()].strip()
        shown = after[2] if after is not None and follows else ""
        code = block[2].removeprefix("%%px\n")  # a cell that engines run, which are ranks
        found.append(Example(document, text[: block.start()].count("\n") + 1, code, shown))
    return found


EXAMPLES = [example for document in DOCUMENTS for example in examples(document)]


def run(code: str, folder: Path) -> tuple[int, str]:
    """Exit status and output of code as train.py on two ranks, or as its first line says."""
    said = re.match(r"# (\d) ranks?(?:, (--\w+))?", code)
    ranks, option = said.groups() if said else ("2", None)
    options = [option] if option else []
    (folder / "train.py").write_text(code, encoding="utf-8")
    return launch(ranks, options, ["train.py"], folder)


def launch(ranks: str, options: list[str], words: list[str], folder: Path) -> tuple[int, str]:
    """Exit status and output of `python words` on so many ranks."""
    command = [sys.executable, "-m", "hpcomm", "run", "-n", ranks, *options, "python", *words]
    done = finish(command, TIMEOUT_S, folder, {"OMP_NUM_THREADS": "1"})
    return done.returncode, done.stdout + done.stderr


def missing(shown: str, output: str) -> str | None:
    """The first shown line that output does not have after the ones before it."""
    lines = iter(line.rstrip() for line in output.splitlines())
    for wanted in shown.splitlines():
        if wanted.strip() and not any(wanted.rstrip() == line for line in lines):
            return wanted
    return None


def lacks(example: Example) -> str | None:
    """A library that the example imports and that is not installed."""
    libraries = re.findall(r"^(?:import|from) (\w+)", example.code, re.MULTILINE)
    libraries += ["zarr"] * ("zarr.save(" in example.code)
    return next((name for name in libraries if not importlib.util.find_spec(name)), None)


def is_alone(example: Example) -> bool:
    """Whether it needs a job of its own: it fails, has other ranks, or leaves `world` out of step."""
    return example.fails or example.code.startswith("# ") or "MismatchError" in example.code


ALONE = [example for example in EXAMPLES if is_alone(example)]


@pytest.mark.parametrize("example", ALONE, ids=str)
def test_an_example_in_a_job_of_its_own_does_what_the_document_shows(
    example: Example, tmp_path: Path
) -> None:
    if library := lacks(example):
        pytest.skip(f"{library} is not installed")
    status, output = run(example.code, tmp_path)
    assert (status != 0) == example.fails, f"status {status}:\n{output}"
    assert missing(example.shown, output) is None, f"not as shown: {missing(example.shown, output)}\n{output}"


DICTIONARY = """
import re, hpcomm
text = open(PAGE).read()
methods = sorted(set(re.findall(r"`[^`]*?\\bcomm\\.(\\w+)", text)))
names = sorted(set(re.findall(r"`[^`]*?\\bhpcomm\\.(\\w+)", text)))
lost = [name for name in methods if not hasattr(hpcomm.world, name)]
print(len(methods) > 30, lost + [name for name in names if not hasattr(hpcomm, name)])
""".replace("PAGE", repr(str(ROOT / "docs/dictionary.md")))
DEMO = "import sys; from hpcomm.apps import allreduce_demo; sys.exit(allreduce_demo.main(['--no-timing']))"


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What all other examples, the demo and DICTIONARY print, by name: one job, as torch starts slowly."""
    folder = tmp_path_factory.mktemp("examples")
    codes = {str(each): each.code for each in EXAMPLES if not is_alone(each) and not lacks(each)}
    folders = {}
    for number, (name, code) in enumerate([*codes.items(), ("demo", DEMO), ("dictionary", DICTIONARY)]):
        folders[name] = folder / f"{number}-{name.replace('/', '-').replace(':', '-')}"
        folders[name].mkdir()
        (folders[name] / "train.py").write_text(code, encoding="utf-8")
    status, output = launch("2", [], [str(IN_ONE_JOB), *map(str, folders.values())], folder)
    assert status == 0, output
    return {
        name: "".join(path.read_text(encoding="utf-8") for path in sorted(each.glob("?.txt")))
        for name, each in folders.items()
    }


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_examples_of_a_document_print_what_it_shows(document: str, printed: dict[str, str]) -> None:
    found = [example for example in examples(document) if str(example) in printed]
    if not found:
        pytest.skip("what its examples import is not installed")
    for example in found:
        out = printed[str(example)]
        assert missing(example.shown, out) is None, f"{example}: {missing(example.shown, out)}\n{out}"


def test_the_demo_prints_the_table_that_the_tour_shows(printed: dict[str, str]) -> None:
    if not (importlib.util.find_spec("torch") and importlib.util.find_spec("ml_dtypes")):
        pytest.skip("the table was made with torch and ml_dtypes")
    text = (ROOT / "docs/tour.md").read_text(encoding="utf-8")
    found = re.search(r"^dtype .*\n(.*\n)+?(?=```)", text, re.MULTILINE)
    assert found
    assert missing(found[0], printed["demo"]) is None, printed["demo"]


def test_a_line_that_does_not_come_is_noticed() -> None:
    assert missing("one\nthree\n", "one\ntwo\nthree\n") is None
    assert missing("three\none\n", "one\ntwo\nthree\n") == "one"
    assert missing("four\n", "one\n") == "four"


def test_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count("\n") <= 115
    blocks = [block[2] for block in FENCE.finditer(text) if block[1] == "python"]
    assert len(blocks) >= 4
    assert max(code.count("\n") for code in blocks) <= 8


def test_the_two_commands_of_readme_are_what_make_and_ci_have() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^make (\w+) ", text, re.MULTILINE)
    assert commands == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(re.search(rf"^{command}:", makefile, re.MULTILINE) for command in commands)
    assert "make test " in (ROOT / ".ci/run").read_text(encoding="utf-8")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_document_has_examples(document: str) -> None:
    assert examples(document)


def test_links_between_the_documents_lead_somewhere() -> None:
    for document in [
        *DOCUMENTS,
        "docs/index.md",
        "docs/README.md",
        "docs/dictionary.md",
        "docs/speed.md",
        "apps/README.md",
        "mpmd_configs/README.md",
    ]:
        text = (ROOT / document).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            if not target.startswith("http"):
                assert (ROOT / document).parent.joinpath(target).exists(), f"{document} -> {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_sentences_are_short(page: Path) -> None:
    """`python docs/_sentences.py PAGE` prints those of more than 25 words, which is what to aim at."""
    text = page.read_text(encoding="utf-8")
    all_of_it = [*sentences(text), *of_tables(text)]
    if page.parent.name == "reference" and importlib.util.find_spec("torch"):
        all_of_it += [each for _, docstring in docstrings(page) for each in of_docstring(docstring)]
    longest = max(all_of_it, key=words)
    assert words(longest) <= 30, longest


def test_sentences_are_found_in_pages_tables_and_docstrings() -> None:
    page = (
        "# A title\n\nOne `a. b`\nsentence. Another!\n\n- an item\n\n```\nno text.\n```\n| In | a cell. Two |"
    )
    assert sentences(page) == ["One `a_\N{NO-BREAK SPACE}b` sentence.", "Another!", "an item"]
    assert of_tables(page) == ["In", "a cell.", "Two"]
    docstring = "Add up.\n\nArgs:\n    x: an array. Or a\n        number.\n\nExample:\n    >>> 1 + 1\n    2\n"
    assert of_docstring(docstring) == ["Add up.", "an array.", "Or a number."]


def test_names_in_the_package_that_pages_give_exist() -> None:
    for page in PAGES:
        for name in re.findall(r"`(hpcomm(?:\.\w+)+)[`(]", page.read_text(encoding="utf-8")):
            try:
                found(name)
            except (AttributeError, ImportError):
                pytest.fail(f"{page}: there is no {name}")


def test_outer_links_are_well_formed() -> None:
    """Whether somebody answers there, `make links` asks."""
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((\w+:[^)]*)\)|<(https?:[^>]*)>", page.read_text(encoding="utf-8")):
            assert re.fullmatch(r"https://[\w-]+(\.[\w-]+)+(/[\w./#~-]*)?", "".join(target)), (page, target)


def test_every_page_is_in_the_list_of_pages() -> None:
    docs = ROOT / "docs"
    listed = set(
        re.findall(r"\]\(((?:tutorials/)?\w+\.md)\)", (docs / "README.md").read_text(encoding="utf-8"))
    )
    pages = {
        str(page.relative_to(docs))
        for folder in ("", "tutorials")
        for page in docs.joinpath(folder).glob("*.md")
    }
    assert listed == pages - {"README.md"}


def test_every_spelling_in_the_dictionary_exists(printed: dict[str, str]) -> None:
    assert printed["dictionary"] == "True []\n" * 2
