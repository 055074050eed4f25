"""Fields to xarray and back, arrays of jax, and what notebooks show; on any number of ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcomm
from hpcomm import Field
from hpcomm.schedule.registry import build

pytestmark = [pytest.mark.few, pytest.mark.three, pytest.mark.once]


@pytest.fixture
def field(comm: Any) -> Any:
    made = Field(comm.mesh(lat=-1, lon=1), (6, 5), halo=1, name="T", unit="K")
    made.inner[...] = 10 * made.indices[0] + made.indices[1]
    return made


def test_a_field_goes_to_xarray_and_comes_back_with_names_and_places(comm: Any, field: Any) -> None:
    xarray = pytest.importorskip("xarray")
    x = field.to_xarray(coords={"lat": [*np.linspace(-90, 90, 6)]})
    assert (x.dims, x.name, x.attrs) == (("lat", "lon"), "T", {"units": "K"})
    assert np.shares_memory(x.values, field.array)
    assert np.array_equal(x.lat, np.linspace(-90, 90, 6)[field.box.slices()[0]])
    assert x.sel(lon=3).lon == 3
    mesh = comm.mesh(lat=-1, lon=1)
    again = Field.from_xarray(mesh, x, whole=field.shape, halo=1)
    assert np.array_equal(again.array, field.array)
    assert (again.name, again.unit) == ("T", "K")
    whole = xarray.DataArray(np.arange(30.0).reshape(5, 6), dims=("lon", "lat"), name="S")
    cut = Field.from_xarray(mesh, whole)  # by name: lat is the second axis here
    assert np.array_equal(cut.all_gather(), whole.values)
    assert cut.box.shape[0] == 5


def test_what_does_not_fit_is_refused(comm: Any, field: Any) -> None:
    xarray = pytest.importorskip("xarray")
    for options, what in (
        ({"dims": ["a"]}, "2 axes have the names"),
        ({"coords": {"lat": [0.0]}}, "and 1 coordinates"),
        ({"coords": {"x": range(6)}}, "there is no axis 'x'"),
        ({"coords": {"lat": np.ma.masked_equal(range(6), 1)}}, "coordinates of axis lat are a masked array"),
    ):
        with pytest.raises(hpcomm.LayoutError, match=what):
            field.to_xarray(**options)
    options: dict[str, Any]
    for options, what in (
        ({"coords": {"lat": 5}}, "axis lat has 6 elements, and the coordinates 5"),
        ({"coords": {"lat": ("lat", range(6))}}, "axis lat has 6 elements, and the coordinates"),
        ({"coords": {"lat": np.ones((6, 2))}}, "axis lat has 6 elements, and the coordinates"),
        ({"coords": [1]}, "coords"), ({"dims": (1, 2)}, "the name of an axis"), ({"dims": 5}, "dims"),
    ):  # fmt: skip
        with pytest.raises(hpcomm.UsageError, match=what):
            field.to_xarray(**options)
    with pytest.raises(hpcomm.LayoutError, match="the value is a masked array, whose mask would be lost"):
        field[0] = [np.ma.masked_equal(range(field.shape[1]), 1)]
    with pytest.raises(hpcomm.UsageError, match="ndarray is no DataArray"):
        Field.from_xarray(comm, np.ones(3))
    with pytest.raises(hpcomm.LayoutError, match="part has shape"):
        Field.from_xarray(comm, xarray.DataArray(np.ones(7)), whole=(3,))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_arrays_of_jax_go_in_and_come_out(comm: Any, dtype: str) -> None:
    jax = pytest.importorskip("jax")
    x = jax.numpy.full(5, comm.rank + 1, dtype)
    total = comm.all_reduce(x)
    assert np.asarray(total).dtype == x.dtype
    assert np.array_equal(np.asarray(total, "f8"), np.full(5, comm.size * (comm.size + 1) / 2))
    back = jax.numpy.asarray(np.asarray(total))
    assert back.dtype == x.dtype
    got = comm.all_gather_object({"x": x})
    assert [float(each["x"][0]) for each in got] == [r + 1 for r in range(comm.size)]


def test_notebooks_show_what_this_rank_knows_and_nothing_runs(comm: Any, field: Any) -> None:
    with comm.dup("<b>") as other:
        assert "Communicator &#x27;&lt;b&gt;&#x27;" in other._repr_html_()
        assert f"{comm.rank} of {comm.size}" in other._repr_html_()
    assert "closed" in other._repr_html_()
    mesh = comm.mesh(y=-1, x=2 if comm.size == 4 else 1)
    assert mesh._repr_html_().count('<td style="text-align:center') == comm.size
    assert mesh._repr_html_().count("font-weight:bold") == 1
    assert "Field T [K]" in field._repr_html_()
    assert "(6, 5) of float64" in field._repr_html_()
    assert "halo" not in Field(comm, (7,))._repr_html_()
    assert "all_reduce by ring" in build("all_reduce", "ring", 4)._repr_html_()
