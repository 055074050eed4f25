"""Pages begin with words for their reader, and specs with the schema for their editor."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGES = [page for page in (ROOT / "docs").rglob("*.md") if "_made" not in page.parts]


def test_every_page_begins_with_a_sentence() -> None:
    """Which says for whom it is: no code, table or heading stands before it, only a picture may."""
    assert len(PAGES) > 40
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert re.match(r"# .+\n\n(```{image}(?s:.*?)```\n\n)?(?!```|[#|<-])\S", text), page


def test_specs_name_the_schema_where_editors_look_for_it() -> None:
    specs = [*(ROOT / "mpmd_configs").glob("*.toml")]
    assert specs
    for spec in specs:
        word, _, path = spec.read_text(encoding="utf-8").partition("\n")[0].partition(" ")
        assert word == "#:schema", spec
        assert (spec.parent / path).samefile(ROOT / "hpcomm/job/spec/spec.json"), spec
