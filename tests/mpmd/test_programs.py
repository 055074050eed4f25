"""The programs of apps/ do what they say, for any number of ranks."""

import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import readme_environment

ROOT = Path(__file__).parents[2]
APPS, CONFIGS = ROOT / "apps", ROOT / "mpmd_configs"


def config(name, ranks, options=None):
    """A spec of mpmd_configs with other numbers of ranks and more options for its programs."""
    text = (CONFIGS / f"{name}.toml").read_text().replace("../apps", str(APPS))
    for program, n in ranks.items():
        head = f"[program.{program}]"
        at = text.index(head)
        text = text[:at] + re.sub(r"ranks = \d+", f"ranks = {n}", text[at:], count=1)
        more = (options or {}).get(program, "")
        at = text.index(head)
        text = text[:at] + re.sub(r'command = "([^"]*)"', rf'command = "\1{more}"', text[at:], count=1)
    return text


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """One that has what README installs, which is enough for all cases but those with torch or a GPU."""
    return readme_environment.made(tmp_path_factory.mktemp("environment"))


@pytest.mark.parametrize(
    ("scheme", "ranks"), [pytest.param("aitken", (2, 1), marks=pytest.mark.once), ("iqn-ils", (1, 2))]
)
def test_the_partitioned_heat_problem_is_exact_at_every_step(spec, python, scheme, ranks):
    both = dict(zip(("dirichlet", "neumann"), ranks, strict=True))
    text = config("heat_coupled", both).replace("--scheme iqn-ils", f"--scheme {scheme}")
    out = spec(text, python=python).stdout
    errors = [float(x) for x in re.findall(r"error (\S+)", out)]
    assert len(errors) == 6
    assert max(errors) < 1e-9
    counts = re.search(rf"{scheme}: iterations ([\d ]+),", out)[1].split()
    assert len(counts) == 5
    if scheme == "iqn-ils":
        assert int(counts[-1]) <= 3


def climate(spec, ranks, days, options=None, *how, python=sys.executable):
    more = {name: f" --days {days}{(options or {}).get(name, '')}" for name in ("atmosphere", "ocean")}
    both = dict(zip(("atmosphere", "ocean"), ranks, strict=True))
    out = spec(config("climate", both, more), *how, python=python).stdout
    found = re.search(r"mean temperature.*K, of the sea .* degC", out)
    assert found, out
    lost = float(re.search(r"not accounted for (\S+) of all", out)[1])
    assert lost < 1e-13
    return found[0]


@pytest.mark.once
def test_the_climate_is_the_same_on_any_number_of_ranks_restarted_and_alone_and_can_be_seen(
    spec, python, tmp_path
):
    whole = climate(spec, (1, 1), 0.5, python=python)
    files = {name: f"{tmp_path}/{name}.npz" for name in ("atmosphere", "ocean")}
    writes, reads = ({name: f" --{how} {path}" for name, path in files.items()} for how in ("write", "read"))
    picture, film = tmp_path / "air.png", tmp_path / "sea.gif"
    if draws := importlib.util.find_spec("matplotlib"):
        writes["atmosphere"] += f" --picture {picture}"
        writes["ocean"] += f" --film {film}"
    half = climate(spec, (1, 2), 0.25, writes, "--record", "kept")
    assert climate(spec, (2, 1), 0.25, reads) == whole
    assert climate(spec, (1, 2), 0.25, None, "--record", "kept", "--only", "atmosphere") == half
    if draws:
        from PIL import Image

        assert picture.read_bytes().startswith(b"\x89PNG")
        with Image.open(film) as frames:
            assert (frames.format, frames.n_frames) == ("GIF", 2)  # at the start and the end of the period


@pytest.mark.once
def test_the_earth_keeps_its_heat_and_its_water_in_both_members_also_after_a_restart(spec, tmp_path):
    for needs in ("scipy", "cftime"):
        pytest.importorskip(needs)
    bin_ = str(Path(sys.prefix) / "bin")
    if not shutil.which("gfortran") or not shutil.which("mpicc", path=bin_):
        pytest.skip("no gfortran, or no mpicc beside this Python")
    environ = {"PATH": f"{bin_}:{os.environ['PATH']}"}

    def lines(members, days, folder=""):
        text = config("earth", {}).replace("2002-01-01", f"2001-01-0{1 + days}")
        text = text.replace("members = 2", f"members = {members}")
        text = text.replace("rivers.sh 365", f"rivers.sh {days} {folder}")
        text = re.sub(r" --film \S*gif", f" --kept {folder}" if folder else "", text)
        out = spec(text, timeout=120, env=environ).stdout
        assert all(float(lost) < 1e-12 for lost in re.findall(r"of all heat (\S+) is not", out))
        return out

    whole = lines(2, 2)
    airs = re.findall(r"atmosphere_\d+\] mean air (\S+) ", whole)
    assert len({*airs}) == 2  # they begin differently
    gone, came = (
        {float(x) for x in re.findall(words, whole)}
        for words in (r"rivers: +(\S+) kg to the sea", r"ice, (\S+) kg from rivers")
    )
    assert len(came) == 1
    assert gone == came
    (tmp_path / "kept").mkdir()
    lines(1, 1, tmp_path / "kept")
    again = lines(1, 2, tmp_path / "kept")
    for words in (r"atmosphere_0001\] mean air \S+ ", r"ocean_0001\] mean sea .*", r"rivers_0001\] .*"):
        assert re.findall(words, again) == re.findall(words, whole) != []


@pytest.mark.once
def test_the_pipeline_trains_and_is_watched(spec):
    pytest.importorskip("torch")
    names = ("producer", "trainer", "monitor")
    few = dict.fromkeys(names, " --batches 20")
    out = spec(config("pipeline", dict(zip(names, (1, 2, 1), strict=True)), few)).stdout
    assert "weights 2.00 -1.00 bias 0.50" in out
    assert "loss fell from" in out


@pytest.mark.once
@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_config_is_right_and_can_be_drawn(path, tmp_path, capsys):
    from hpcomm.mpmd.spec import draw_spec

    assert draw_spec.check([str(path)]) == 0
    assert draw_spec.plan([str(path)]) == 0
    for kind in ("svg", "html"):
        assert draw_spec.main(["draw", str(path), "-o", str(tmp_path / f"job.{kind}")]) == 0
        text = (tmp_path / f"job.{kind}").read_text()
        assert "<svg" in text
        if kind == "svg":
            ElementTree.fromstring(text)
    out = capsys.readouterr().out
    assert "is right" in out
