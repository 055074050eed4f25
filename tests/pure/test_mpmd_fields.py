"""What two programs agree on: kinds of elements at both ends, and how far one may be ahead of the other."""

import math
from dataclasses import asdict
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from hpcomm.core import dtypes
from hpcomm.errors import ConfigError, DtypeError
from hpcomm.grids.rows import LatLon
from hpcomm.grids.weights import Weights
from hpcomm.job.spec.calendar import Duration
from hpcomm.mpmd.connect import agreed
from hpcomm.mpmd.coupled_field import Field, check_values
from hpcomm.mpmd.coupling import coupler
from hpcomm.mpmd.coupling.components import Vector
from hpcomm.mpmd.coupling.coupling_clock import Clock, Schedule
from hpcomm.mpmd.coupling.wire import Part
from hpcomm.mpmd.spec.spec_file import FieldSpec

BITS = "such fields can only be moved as they are"
KINDS = {
    ("float64", "float32", "instant"): None,
    ("int32", "float64", "instant"): None,
    ("float16", "float16", "instant"): None,
    ("int16", "int64", "sum"): None,
    ("float16", "bfloat16", "instant"): BITS,
    ("float32", "float16", "instant"): BITS,
    ("bfloat16", "uint16", "instant"): BITS,
    ("float16", "float16", "mean"): BITS,
    ("int4", "uint8", "instant"): BITS,
    ("float6_e2m3fn", "float6_e2m3fn", "mean"): BITS,
    ("float64", "int64", "instant"): "values would be lost on the way",
    ("complex64", "float64", "instant"): "values would be lost on the way",
    ("int64", "int64", "mean"): "a mean of integers would be cut",
    ("complex64", "complex64", "max"): "complex numbers have no max",
    ("int64", "int64", "min"): None,
    ("int16", "int16", "sum"): "a sum may need more bits",
    ("bool", "bool", "sum"): "a sum may need more bits",
    ("uint64", "uint64", "sum"): None,
    ("float32", "float32", "sum"): None,
    ("int32", "int32", "linear"): "what time 'linear' makes are no whole numbers",
    ("int32", "float32", "linear"): None,
}


def entry(kind):
    own = {"grid": None, "bases": False}
    return {"dtype": np.dtype(dtypes.BY_NAME[kind].storage).str, "kind": kind, "shape": (), **own}


WHEN = {"start": 0.0, "said": "0 s", "calendar": None}


def both(gives, takes):
    """What two programs say, of which one gives and the other takes."""
    return {"a": {"gives": gives, "takes": {}} | WHEN, "b": {"gives": {}, "takes": takes} | WHEN}


@pytest.mark.parametrize("case", KINDS, ids=" ".join)
def test_what_arrives_means_what_was_sent_or_is_refused(case):
    given, taken, time = case
    spec = FieldSpec("f", "a", "b", every=Duration(1.0), time=time)
    sides = both({"f": entry(given)}, {"f": entry(taken)})
    if KINDS[case] is None:
        assert agreed("a", sides, Clock(), (spec,)) == [spec]
    else:
        with pytest.raises(
            ConfigError, match=f"field 'f' is {given} at 'a' and {taken} at 'b': {KINDS[case]}"
        ):
            agreed("a", sides, Clock(), (spec,))


def test_bases_are_for_vectors():
    given, taken = ({**entry("float64"), "surface": "sphere", "areas": False} for _ in range(2))
    taken |= {"bases": True, "grid": "latlon"}
    spec = FieldSpec("f", "a", "b", mapping="nearest")
    with pytest.raises(ConfigError, match=r"with bases= by 'b', but is no vector\n.*\n.*vector = true"):
        agreed("a", both({"f": given | {"grid": "latlon"}}, {"f": taken}), Clock(), (spec,))


def on_a_sphere(**more):
    return {**entry("float64"), "grid": "latlon", "surface": "sphere", "areas": False, **more}


def takes(name, entry=None, vector=("u", "v"), mapping="bilinear"):
    return {
        name: (entry or on_a_sphere()) | {"wish": asdict(FieldSpec(name, "", "b", mapping, vector=vector))}
    }


UV = {"u": on_a_sphere(), "v": on_a_sphere()}
VECTORS = {
    "no v is given": ({"u": on_a_sphere()}, takes("u") | takes("v"), "'a' is to give 'v' .* declares 'u'"),
    "no v is taken": (UV, takes("u"), "program 'b' is to take 'v'"),
    "no u is taken": (UV, takes("v"), "program 'b' is to take 'u'"),
    "other mappings": (
        UV,
        takes("u") | takes("v", mapping="nearest"),
        "'u' and 'v' are one vector, but are taken with different mapping",
    ),
    "v is none": (UV, takes("v", vector=False) | takes("u"), "taken with different vector"),
    "other shapes": (
        {"u": on_a_sphere(), "v": on_a_sphere(shape=(3,))},
        takes("u") | takes("v"),
        "'a' gives 'u' and 'v' with different shape, and they are the vector 'u,v'",
    ),
    "other grids": (
        UV,
        takes("u") | takes("v", on_a_sphere(grid=None)),
        "'b' takes 'u' and 'v' with different grid",
    ),
    "angles of one": (
        {"u": on_a_sphere(bases=True), "v": on_a_sphere()},
        takes("u") | takes("v"),
        "'a' gives 'u' and 'v' with different bases",
    ),
    "whole here, apart there": (
        {"wind": on_a_sphere(shape=(3,))},
        takes("wind", on_a_sphere(shape=(2,))),
        "field 'wind' has \\(3,\\) per point at 'a' and \\(2,\\) at 'b'",
    ),
}


@pytest.mark.parametrize("case", VECTORS)
def test_components_of_a_vector_are_alike_and_both_there(case):
    gives, taken, words = VECTORS[case]
    for program in "ab":
        with pytest.raises(ConfigError, match=words):
            agreed(program, both(gives, taken), Clock(), None)


def test_two_components_are_one_field_and_may_be_whole_at_one_end():
    (found,) = agreed("a", both(UV, takes("u") | takes("v")), Clock(), None)
    assert (found.name, found.vector, found.source) == ("u,v", ("u", "v"), "a")
    (found,) = agreed("a", both(UV, takes("wind", on_a_sphere(shape=(2,)))), Clock(), None)
    assert found.name == "wind"


APART = {
    "points": {"points": [0, 2]},
    "grid": {"grid": LatLon(3, 4)},
    "areas": {"areas": [1.0, 2.0]},
    "bases": {"bases": [90.0, 0.0]},
}


@pytest.mark.parametrize("word", APART)
def test_components_lie_at_the_same_points(word):
    how = {"points": [0, 1], "grid": LatLon(2, 4), "bases": [0.0, 0.0]}
    u, v = (Field(name, np.zeros(2), verb="gives", **how) for name in "uv")
    assert Vector("wind", u, v).values.shape == (2, 2)
    other = Field("v", np.zeros(2), verb="gives", **how | APART[word])
    with pytest.raises(ConfigError, match=f"'u' and 'v' are the vector 'wind', but differ in their {word}"):
        Vector("wind", u, other)


CUTS = {
    ("int32", "conservative"): ({"mapping": "conservative"}, "mapping 'conservative'"),
    ("bool", "idw"): ({"mapping": "idw"}, "mapping 'idw'"),
    ("int8", "weights"): ({"mapping": "nearest", "weights": "w.npz"}, "weights from a file"),
    ("int64", "units"): ({"source_unit": "degC", "target_unit": "K"}, "a conversion of units"),
    ("uint8", "implicit"): ({"implicit": True}, "an implicit coupling"),
}


@pytest.mark.parametrize("case", CUTS, ids=" ".join)
def test_whole_numbers_that_would_be_cut_are_refused_by_both_sides(case):
    kind, (options, what) = case[0], CUTS[case]
    spec = FieldSpec("f", "a", "b", **options)
    gives, takes = (
        {"f": {**entry(kind), "surface": "sphere", "areas": False, "grid": "latlon"}} for _ in range(2)
    )
    sides = both(gives, takes)
    for name in sides:
        words = f"field 'f' is {kind} at 'a' and {kind} at 'b': what {what} makes are no whole numbers"
        with pytest.raises(ConfigError, match=words) as told:
            agreed(name, sides, Clock(), (spec,))
        assert "a floating dtype at 'b'" in str(told.value)
    takes["f"].update(entry("float64"), grid="latlon", surface="sphere")
    assert agreed("a", sides, Clock(), (spec,)) == [spec]


@pytest.mark.parametrize(("start", "first"), [(0.0, 0), (3.0, 2), (4.0, 2), (4.1, 3), (4.0 + 1e-9, 2)])
def test_a_run_that_starts_between_two_versions_begins_with_the_next(start, first):
    assert Schedule(Duration(2.0), start_s=start).first() == first


SET_ANEW = {
    ("gives", "float64", "float64"): None,
    ("gives", "float64", "int32"): None,
    ("gives", "int32", "float64"): "are now float64, and it was declared as int32",
    ("gives", "float16", "uint16"): "are now uint16",
    ("takes", "float64", "float32"): None,
    ("takes", "float64", "int32"): "are now int32",
    ("takes", "complex64", "float64"): "are now float64",
}


@pytest.mark.parametrize("case", SET_ANEW, ids=" ".join)
def test_values_set_anew_are_of_a_kind_that_keeps_them(case):
    verb, declared, now = case
    field = Field("f", np.zeros(3, declared), np.arange(3), None, verb)
    if SET_ANEW[case] is None:
        check_values(field, np.zeros(3, now))
    else:
        with pytest.raises(DtypeError, match=SET_ANEW[case]):
            check_values(field, np.zeros(3, now))


COMPUTED = [
    case
    for case in product(
        ("float32", "float64", "complex64", "int32", "uint8"),
        ("float32", "float64", "complex64"),
        ("none", "weights"),
        ((1.0, 0.0), (5 / 9, 273.15 - 32 * 5 / 9)),
        ("instant", "linear", "mean"),
    )
    if np.can_cast(*case[:2], "same_kind")
]


@pytest.mark.parametrize("case", COMPUTED, ids=str)
def test_what_arrives_is_computed_in_float64_and_rounded_once(case):
    source, target, mapping, unit, time = case
    wide = complex if source.startswith("c") else float
    put = (np.random.default_rng(3).random((2, 50, 3)) * 200).astype(source)
    dtype, schedule = coupler.sent_dtype(np.dtype(source), time), Schedule(Duration(2.0), time=time)
    field = Field("f", np.zeros((50, 3), target), np.arange(50), None, "takes")
    weights = None
    if mapping == "weights":
        sparse = pytest.importorskip("scipy.sparse")
        matrix = sparse.random(50, 50, 0.2, "csr", rng=np.random.default_rng(4)) + sparse.eye(
            50, format="csr"
        )
        weights = Weights(matrix.tocsr(), np.arange(50), np.ones(50))
    part = Part(field, [(0, slice(0, 50))], dtype)
    spec = FieldSpec("f", "a", "b")
    taking = coupler.Incoming(spec, None, part, schedule, weights=weights)
    taking.conversion = unit
    taking._channel = SimpleNamespace(start=lambda: None, finish=lambda: None, stamp=(0.0, 0.0))
    sent = []
    if time == "mean":
        given = Field("f", put[0].copy(), np.arange(50), None, "gives")
        giving = coupler.Outgoing(spec, None, Part(given, [], dtype), schedule)
        giving.put(0.0)
        for t, giving.field.values in ((1.0, put[0]), (2.0, put[1])):
            giving.put(t)
        sent.append(giving.last)
        right = (put[0].astype(wide) + put[1]) / 2
    else:
        sent += list(put)
        right = put[0].astype(wide)
    each = iter(sent)

    def come():
        taking._inbox.values[...] = next(each)
        taking._channel.stamp = (max(taking.version, -1) + 1.0, 0.0)

    taking._channel.start = come
    got = taking.get(0.5 if time == "linear" else 0.0)
    both = [right, put[1].astype(wide)] if time == "linear" else [right]
    if weights is not None:
        both = [np.asarray(weights.matrix @ x) for x in both]
    both = [x * unit[0] + unit[1] for x in both]
    right = 0.75 * both[0] + 0.25 * both[1] if time == "linear" else both[0]
    assert np.array_equal(got, right.astype(target))


@pytest.mark.parametrize(
    ("lag", "step", "ahead"),
    [
        (0.0, None, 2),
        (0.0, 1.0, 2),
        (2.0, None, 3),
        (6.0, None, 5),
        (0.0, 8.0, 5),
        (6.0, 8.0, 8),
        (1e6, None, 64),
    ],
)
def test_a_giver_may_be_ahead_by_the_lag_and_by_a_step_of_its_taker(lag, step, ahead):
    assert Schedule(Duration(2.0), Duration(lag)).ahead(step) == ahead
    assert Schedule(None).ahead(step) == 2


@pytest.mark.parametrize(
    ("kind", "fill"),
    [("int32", 0.5), ("uint8", -1), ("uint8", 300), ("float32", "keep"), ("int64", math.nan)],
)
def test_what_fills_uncovered_points_must_fit_the_field(kind, fill):
    field = Field("f", np.zeros((3, 2), kind), np.arange(3), None, "takes")
    rows = np.array([0, 2])
    if fill == "keep":
        assert coupler._filling(field, rows, fill) is None
        assert np.isnan(coupler._filling(field, rows, math.nan)).all()
        assert (coupler._filling(field, rows, 7) == np.full((2, 2), 7.0)).all()
    else:
        with pytest.raises(ConfigError, match=f"of {kind} cannot hold {fill}"):
            coupler._filling(field, rows, fill)
