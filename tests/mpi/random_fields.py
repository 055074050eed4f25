"""More steps of a random mixture: fields, their halos, slices and files; points; windows; ragged arrays."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from random_things import array

import hpcomm

try:
    import h5py
except ImportError:
    h5py = None
try:
    import zarr
except ImportError:
    zarr = None

DTYPES = ("float64", "float32", "int16", "int64", "complex128", "bool")


class Fields:
    """A part of a Mixture."""

    rank: int
    now: str
    own: random.Random
    check: Any
    settle: Any

    def fields(self, rng: random.Random, circle: Any) -> None:
        """A field and the whole that it stands for, changed and moved alike."""
        shape = tuple(rng.choice((1, 2, 5, 8, 13)) for _ in range(rng.randrange(1, 4)))
        dtype = np.dtype(rng.choice(DTYPES))
        whole = numbers(rng, shape, dtype)
        field = self.cut(rng, circle.comm, shape, dtype)
        field.inner[...] = whole[field.box.slices()]
        for _ in range(rng.randrange(2, 7)):
            kinds = [self.rim, self.all_of_it, self.slice, self.move, self.file, self.total, self.spread]
            step = rng.choice([*kinds, self.others_files, self.reckon])
            self.now += f", {step.__name__}"
            field, whole = step(rng, circle, field, whole)

    def cut(self, rng: random.Random, comm: Any, shape: tuple[int, ...], dtype: Any, **given: Any) -> Any:
        """A field over some mesh of all ranks of comm."""
        first = rng.choice([d for d in range(1, comm.size + 1) if comm.size % d == 0])
        sizes = {"a": first, "b": comm.size // first} if len(shape) > 1 else {"a": comm.size}
        split: list[Any] = [*sizes] + [None] * (len(shape) - len(sizes))
        rng.shuffle(split)
        halo = [(rng.randrange(3), rng.randrange(3)) for _ in shape]
        rings = [axis for axis in range(len(shape)) if rng.randrange(2)]
        words = {"split": split, "dtype": dtype, "halo": halo, "periodic": rings, **given}
        self.now += f", {shape} of {dtype} over {sizes}, {split}, halo {halo}, rings {rings}"
        field = hpcomm.Field(comm.mesh(sizes), shape, **words)
        field.rings = rings  # type: ignore[attr-defined]
        return field

    def rim(self, rng: random.Random, circle: Any, field: Any, whole: Any) -> tuple[Any, Any]:
        wanted = field.array.copy()
        grown = field.box.grown(field.halo)
        for index in np.ndindex(wanted.shape if field.box.size else (0,)):
            at = [i + o for i, o in zip(index, grown.start, strict=True)]
            within = zip(at, whole.shape, strict=True)
            if all(0 <= i < n or axis in field.rings for axis, (i, n) in enumerate(within)):
                wanted[index] = whole[tuple(np.mod(at, whole.shape))]
        field.update_halo()
        self.check(field.array.copy(), wanted)
        return field, whole

    def all_of_it(self, rng: random.Random, circle: Any, field: Any, whole: Any) -> tuple[Any, Any]:
        root = rng.randrange(circle.size)
        got = field.gather(root)
        self.check(got, whole if circle.ranks.index(self.rank) == root else None)
        self.check(field.all_gather(), whole)
        return field, whole

    def slice(self, rng: random.Random, circle: Any, field: Any, whole: Any) -> tuple[Any, Any]:
        key = tuple(
            slice(*sorted(rng.choices(range(n + 1), k=2)), rng.randrange(1, 4))
            if rng.randrange(3)
            else rng.randrange(-n, n)
            for n in whole.shape
        )
        self.now += f" {key}"
        self.check(np.asarray(field[key]), np.asarray(whole[key]))
        whole[key] = field[key] = numbers(rng, np.shape(whole[key]), whole.dtype)
        return self.all_of_it(rng, circle, field, whole)

    def move(self, rng: random.Random, circle: Any, field: Any, whole: Any) -> tuple[Any, Any]:
        other = self.cut(rng, circle.comm, whole.shape, whole.dtype)
        field.redistribute(other)
        self.check(other.inner.copy(), whole[other.box.slices()])
        return other, whole

    def file(self, rng: random.Random, circle: Any, field: Any, whole: Any) -> tuple[Any, Any]:
        made = tempfile.mkdtemp(prefix="hpcomm-tests-") if circle.ranks[0] == self.rank else None
        folder = Path(circle.comm.broadcast_object(made))
        how = {"collective": bool(rng.randrange(2))}
        hpcomm.io.save(field, folder / "x.npy", **how)
        self.check(np.load(folder / "x.npy"), whole)
        hpcomm.io.write_raw(field, folder / "raw", 24, **how)
        other = self.cut(rng, circle.comm, whole.shape, whole.dtype)
        if rng.randrange(2):
            hpcomm.io.read_into(other, folder / "x.npy", **how)
        else:
            hpcomm.io.read_raw(other, folder / "raw", 24, **how)
        self.check(other.inner.copy(), whole[other.box.slices()])
        circle.comm.barrier()
        if made:
            shutil.rmtree(folder)
        return other, whole

    def others_files(self, rng: random.Random, circle: Any, field: Any, whole: Any) -> tuple[Any, Any]:
        """HDF5 and zarr, in one piece and in chunks."""
        module = rng.choice([each for each in (hpcomm.hdf5, hpcomm.zarr) if there(each.__name__)] or [None])
        if module is None:
            return field, whole
        made = tempfile.mkdtemp(prefix="hpcomm-tests-") if circle.ranks[0] == self.rank else None
        path = Path(circle.comm.broadcast_object(made)) / "x"
        chunks = rng.choice([True, tuple(rng.randrange(1, n + 1) for n in whole.shape)])
        words: dict[str, Any] = {"chunks": chunks}
        if module is hpcomm.hdf5:
            words = rng.choice([{}, words, {"compression": "gzip", **words}])
        self.now += f" {module.__name__} {words}"
        field.name = "x"
        module.save(field, path, **words)
        if module is hpcomm.hdf5:
            with h5py.File(path) as file:
                self.check(file["x"][()], whole)
        else:
            self.check(np.asarray(zarr.open(path, mode="r")["x"][...]), whole)
        other = self.cut(rng, circle.comm, whole.shape, whole.dtype, name="x")
        module.read_into(other, path)
        self.check(other.inner.copy(), whole[other.box.slices()])
        circle.comm.barrier()
        if made:
            shutil.rmtree(made)
        return other, whole

    def reckon(self, rng: random.Random, circle: Any, field: Any, whole: Any) -> tuple[Any, Any]:
        """Operators: what is computed of each rank's elements is a field again."""
        if whole.dtype.kind != "b":
            number, kept = rng.randrange(1, 5), field.array.copy()
            made = number - field * field / number + abs(-field)
            here = whole[field.box.slices()]
            self.check(made.inner.copy(), number - here * here / number + abs(-here))
            field += number
            whole = whole + whole.dtype.type(number)
            kept[field._own()] = whole[field.box.slices()]
            self.check(field.array.copy(), kept)
        return field, whole

    def total(self, rng: random.Random, circle: Any, field: Any, whole: Any) -> tuple[Any, Any]:
        """Whole numbers, so in any order the same."""
        if whole.dtype.kind != "b":
            self.check(complex(field.sum()), complex(whole.sum(dtype="c16")))
        if whole.dtype.kind not in "bc":
            self.check((float(field.min()), float(field.max())), (float(whole.min()), float(whole.max())))
        return field, whole

    def spread(self, rng: random.Random, circle: Any, field: Any, whole: Any) -> tuple[Any, Any]:
        whole, root = numbers(rng, whole.shape, whole.dtype), rng.randrange(circle.size)
        field.scatter(whole if circle.ranks.index(self.rank) == root else None, root)
        self.check(field.inner.copy(), whole[field.box.slices()])
        return field, whole

    def points(self, rng: random.Random, circle: Any) -> None:
        """Points in any order, with ghosts, moved to other ranks."""
        n, me, tail = rng.choice((1, 7, 40)), circle.ranks.index(self.rank), rng.choice(((), (3,)))
        whole = numbers(rng, (n, *tail), np.dtype(rng.choice(DTYPES)))

        def drawn() -> Any:
            order, owner = rng.sample(range(n), n), [rng.randrange(circle.size) for _ in range(n)]
            owned = [[i for i in order if owner[i] == r] for r in range(circle.size)]
            ghosts = [
                rng.sample(others := [i for i in order if owner[i] != r], rng.randrange(len(others) + 1))
                for r in range(circle.size)
            ]
            return hpcomm.Points((n, *tail), owned, ghosts)

        field = hpcomm.Field(circle.comm, drawn(), dtype=whole.dtype)
        field.inner[...] = whole[field.partition.owned[me]]
        field.update_halo()
        for target in (field, field.redistribute(drawn())):
            self.check(target.all_gather(), whole, "all_gather")
            self.check(target.inner.copy(), whole[target.partition.owned[me]], "inner")
        field.redistribute(other := hpcomm.Field(circle.comm, drawn(), dtype=whole.dtype))
        other.update_halo()
        there = [*other.partition.owned[me], *other.partition.ghosts[me]]
        self.check(other.array.copy(), whole[np.array(there, int)], "ghosts")

    def epochs(self, rng: random.Random, circle: Any) -> None:
        """A window in which every cell has one writer, or is added to by all, between two fences."""
        n, me, length = circle.size, circle.ranks.index(self.rank), rng.choice((1, 6, 40, 3000))
        dtype = np.dtype(rng.choice(("int32", "int64", "float64")))
        with circle.comm.window((n, length), dtype) as window:
            memory = np.zeros((n, n, length), dtype)  # of rank, as the window is
            for turn in range(rng.randrange(1, 5)):
                values = [numbers(rng, (length,), dtype) for _ in range(n)]
                if rng.randrange(2):
                    row = [rng.randrange(n) for _ in range(n)]  # of each target, who writes where
                    for target in range(n):
                        window.put(values[me] + target, target, at=(me + row[target]) % n)
                        for r in range(n):
                            memory[target, (r + row[target]) % n] = values[r] + target
                else:
                    op, target, at = rng.choice(("sum", "max", "min")), rng.randrange(n), rng.randrange(n)
                    window.accumulate(values[me], target, op, at=at)
                    function = {"sum": np.add, "max": np.maximum, "min": np.minimum}[op]
                    for each in values:
                        memory[target, at] = function(memory[target, at], each)
                window.fence()
                self.check(window.array.copy(), memory[me], f"turn {turn}")
                far, at = self.own.randrange(n), self.own.randrange(n)
                self.check(window.get(far, at=at), memory[far, at], f"turn {turn}, get")
                window.fence()

    def neighbours(self, rng: random.Random, circle: Any) -> None:
        """Ragged arrays along the edges of a graph."""
        n, me = circle.size, circle.ranks.index(self.rank)
        goes = [rng.sample(range(n), rng.randrange(n + 1)) for _ in range(n)]
        sent = {(r, d): array(rng) for r in range(n) for d in goes[r]}
        self.settle()
        with circle.comm.graph(goes[me]) as graph:
            self.check(sorted(graph.sources), [r for r in range(n) if me in goes[r]])
            got = graph.neighbour_all_to_all_ragged([sent[me, d] for d in goes[me]])
            self.check(list(got), [sent[s, me] for s in graph.sources])


def there(module: str) -> bool:
    """Whether the library of hpcomm.hdf5 or hpcomm.zarr is."""
    return (h5py if module == "hpcomm.hdf5" else zarr) is not None


def numbers(rng: random.Random, shape: tuple[int, ...], dtype: Any) -> Any:
    """Small whole numbers, which every dtype holds and which add up exactly."""
    return np.random.default_rng(rng.randrange(1 << 30)).integers(0, 90, shape).astype(dtype)
