"""Pictures of specs: nothing lies on anything else, whatever the spec."""

from __future__ import annotations

import re
import sys
from itertools import combinations
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from hpcomm.errors import MissingError
from hpcomm.mpmd.spec.draw_spec import svg
from hpcomm.mpmd.spec.spec_reader import read

pytest.importorskip("pygraphviz")

CONFIGS = Path(__file__).parents[2] / "mpmd_configs"
SVG = "{http://www.w3.org/2000/svg}"
FIELDS = """
atmosphere ocean heat_flux, ocean atmosphere surface_temperature, ocean ice salinity, ice ocean melt,
ice atmosphere albedo, atmosphere ice snow, atmosphere land rain, land atmosphere evaporation,
land rivers runoff, rivers ocean discharge, atmosphere ocean wind_stress_x, atmosphere ocean wind_stress_y,
ocean watcher speed, atmosphere watcher a_field_with_a_name_that_is_much_longer_than_any_other_one
"""


class Box(NamedTuple):
    """left, right, top, bottom, in points."""

    left: float
    right: float
    top: float
    bottom: float

    def meets(self, other: Box) -> bool:
        across = self.left < other.right - 1 and other.left < self.right - 1
        return across and self.top < other.bottom - 1 and other.top < self.bottom - 1

    def has(self, x: float, y: float) -> bool:
        return self.left + 1 < x < self.right - 1 and self.top + 1 < y < self.bottom - 1


class Drawn(NamedTuple):
    """A program or a field: its name in the picture, its outline or line, its text."""

    name: str
    points: list[tuple[float, float]]
    text: Box


def around(points: list[tuple[float, float]]) -> Box:
    xs, ys = zip(*points, strict=True)
    return Box(min(xs), max(xs), min(ys), max(ys))


def text_of(group: ElementTree.Element) -> Box:
    """Around all its text, each letter as wide as in a wide font."""
    boxes = []
    for text in group.iter(f"{SVG}text"):
        size, x, y = (float(text.attrib[key]) for key in ("font-size", "x", "y"))
        bold = text.get("font-weight") == "bold"
        wide = len(text.text or "") * size * (0.6 if bold else 0.55)
        left = {"start": x, "middle": x - wide / 2}[text.attrib["text-anchor"]]
        boxes += [(left, y - 0.75 * size), (left + wide, y + 0.2 * size)]
    return around(boxes)


def line_of(group: ElementTree.Element) -> list[tuple[float, float]]:
    """Points along its first path, whose curves are of third order."""
    path = next(group.iter(f"{SVG}path"))
    ends = [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+),(-?[\d.]+)", path.attrib["d"])]
    found = [ends[0]]
    for i in range(0, len(ends) - 3, 3):
        for k in range(1, 21):
            t = k / 20
            weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
            four = ends[i : i + 4]
            found.append(
                tuple(sum(w * e[axis] for w, e in zip(weights, four, strict=True)) for axis in (0, 1))
            )  # type: ignore[arg-type]
    return found


def parts(picture: str) -> tuple[list[Drawn], list[Drawn]]:
    """(programs, fields) of a picture."""
    found: dict[str, list[Drawn]] = {"node": [], "edge": []}
    for group in ElementTree.fromstring(picture).iter(f"{SVG}g"):
        if group.get("class") in found:
            name = group.findtext(f"{SVG}title") or ""
            found[group.attrib["class"]].append(Drawn(name, line_of(group), text_of(group)))
    return found["node"], found["edge"]


def overlaps(picture: str) -> list[str]:
    """What lies on what, in words."""
    programs, fields = parts(picture)
    boxes = {each.name: around(each.points) for each in programs}
    labels = [(each.name, each.text) for each in fields]
    found = [f"{a} on {b}" for (a, x), (b, y) in combinations([*boxes.items(), *labels], 2) if x.meets(y)]
    for each in programs:
        box, text = boxes[each.name], each.text
        if not (box.left <= text.left and text.right <= box.right and box.top <= text.top):
            found.append(f"the text of {each.name} leaves its box")
    for i, each in enumerate(fields):
        others = [*boxes.items(), *(label for k, label in enumerate(labels) if k != i)]
        found += [
            f"the line of {each.name} in {b}" for b, box in others if any(box.has(*at) for at in each.points)
        ]
    return found


def large(folder: Path) -> Path:
    """A spec of six programs and fourteen fields between them."""
    (folder / "a.py").touch()
    ranks = {"atmosphere": 40, "ocean": 8, "ice": 2, "land": 3, "rivers": 1, "watcher": 1}
    text = '[job]\nname = "earth"\nstart = "2000-01-01"\ncalendar = "noleap"\n'
    text += "".join(f'[program.{name}]\ncommand = "python a.py"\nranks = {n}\n' for name, n in ranks.items())
    for line in FIELDS.replace("\n", " ").split(","):
        source, target, name = line.split()
        text += (
            f'[[field]]\nname = "{name}"\nfrom = "{source}"\nto = "{target}"\nevery = 3600.0\nlag = 3600.0\n'
        )
    (folder / "earth.toml").write_text(text)
    return folder / "earth.toml"


def test_an_ensemble_is_one_box_and_its_fields_one_arrow_each(tmp_path: Path) -> None:
    path = large(tmp_path)
    path.write_text(path.read_text().replace("ranks = 8\n", "ranks = 8\nmembers = 20\n"))
    picture = svg(read(path))
    programs, fields = parts(picture)
    assert (len(programs), len(fields)) == (6, 14)
    assert ", 20 members" in picture
    assert "cpu, 160 ranks" in picture
    assert overlaps(picture) == []


@pytest.mark.parametrize("name", [*sorted(path.stem for path in CONFIGS.glob("*.toml")), "earth"])
def test_nothing_in_the_picture_of_a_spec_lies_on_anything_else(name: str, tmp_path: Path) -> None:
    spec = read(large(tmp_path) if name == "earth" else CONFIGS / f"{name}.toml")
    picture = svg(spec)
    programs, fields = parts(picture)
    assert {each.name for each in programs} == {*spec.programs}
    assert len(fields) == len(spec.fields)
    assert overlaps(picture) == []
    assert picture == svg(spec)


def test_a_label_on_a_box_is_found(tmp_path: Path) -> None:
    picture = svg(read(CONFIGS / "heat_coupled.toml"))
    (one, _), (field, _) = parts(picture)
    x, y = (one.text.left, (one.text.top + one.text.bottom) / 2)
    text = re.sub(rf'x="{field.text.left:g}" y="[-\d.]+"', f'x="{x:g}" y="{y:g}"', picture)
    assert text != picture
    assert any("on" in words for words in overlaps(text))


def test_without_graphviz_the_picture_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygraphviz", None)
    with pytest.raises(MissingError, match="needs pygraphviz") as caught:
        svg(read(CONFIGS / "pipeline.toml"))
    assert "hpcomm[graph]" in str(caught.value)
