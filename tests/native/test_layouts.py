"""Arrays that do not lie in order: the core takes them as they lie, however the other ranks' lie."""

import numpy as np
import pytest

core = pytest.importorskip("hpcomm.node._native.core")
pytestmark = pytest.mark.once

import ranks  # noqa: E402

core.know_numpy(np)

SHAPES = [(4, 3), (24, 18), (2, 90, 80), (4096, 100)]  # in the cells, in one piece, in many


def lying(how, shape, dtype):
    """Zeros that lie in order, by columns, apart, from the end on, or within a larger array."""
    if how == 0:
        return np.zeros(shape, dtype)
    if how == 1:
        return np.zeros(shape, dtype, order="F")
    if how == 2:
        return np.zeros((*shape[:-1], 2 * shape[-1]), dtype)[..., ::2]
    if how == 3:
        return np.zeros(shape, dtype)[::-1]
    return np.zeros([n + 2 for n in shape], dtype)[tuple(slice(1, n + 1) for n in shape)]


def results(all_x, rank):
    """What a rank gets by each verb; of those with a root, rank 1 is it."""
    total = sum(all_x[1:], all_x[0])
    below = sum(all_x[1:rank], all_x[0]) if rank else 0 * all_x[0]
    gives = {
        "all_reduce": total,
        "reduce": total if rank == 1 else None,
        "broadcast": all_x[1],
        "gather": np.stack(all_x) if rank == 1 else None,
        "all_gather": np.stack(all_x),
        "scan": below + all_x[rank] if rank else all_x[0],
        "exscan": below,
    }
    if len(total) % len(all_x):
        return gives
    blocks = [np.split(x, len(all_x)) for x in all_x]
    return gives | {
        "scatter": blocks[1][rank],
        "reduce_scatter": sum(each[rank] for each in blocks),
        "all_to_all": np.concatenate([each[rank] for each in blocks]),
    }


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("direct_from", [0, 4 << 20])
def test_arrays_are_taken_as_they_lie_on_each_rank(size, direct_from):
    def body(node):
        chance = np.random.default_rng(node.rank)
        by_columns, on_some_ranks, by_chance = [1], [node.rank % 2], range(5)
        for shape, dtype in zip(SHAPES, ("c16", "i1", "f4", "f8"), strict=True):
            all_x = [
                np.random.default_rng([r, *shape]).integers(0, 9, shape).astype(dtype) for r in range(size)
            ]
            for verb, want in results(all_x, node.rank).items():
                how = (*(["sum"] * ("reduce" in verb or "scan" in verb)), *([1] * (verb in ROOTED)))
                for layouts in by_columns, on_some_ranks, by_chance:
                    x = lying(chance.choice(layouts), shape, dtype)
                    x[...] = all_x[node.rank]
                    out = None if want is None else lying(chance.choice(layouts), want.shape, dtype)
                    made = getattr(node, verb)(x, *how, out)
                    assert made is out, (verb, shape)
                    np.testing.assert_array_equal(made, want, verb)
                    if made is not None and made.base is not None:  # nothing between its elements
                        assert np.count_nonzero(made.base) == np.count_nonzero(want), verb
                    np.testing.assert_array_equal(x, all_x[node.rank], verb)
                    if verb in IN_PLACE:
                        assert getattr(node, verb)(x, *how, x) is x
                        np.testing.assert_array_equal(x, want, verb)

    ranks.together(size, body, direct_from=direct_from)


ROOTED = ("broadcast", "reduce", "gather", "scatter")
IN_PLACE = ("broadcast", "all_reduce", "scan", "exscan", "all_to_all")


def test_tensors_and_halves_are_taken_as_they_lie():
    torch = pytest.importorskip("torch")
    core.know_torch(torch)

    def body(node):
        x, out = torch.ones(40, 300).t(), torch.zeros(300, 80)[:, ::2]
        assert node.all_reduce(x, "sum", out) is out
        assert (out == node.size).all()
        assert node.all_reduce(x, "sum").is_contiguous()
        halves = torch.ones(8, 4).to(torch.bfloat16).t()
        assert (node.all_reduce(halves, "sum") == node.size).all()
        assert (node.all_reduce(halves.view(torch.int16).numpy(), "sum", None, 11) == 0x4000).all()

    ranks.together(2, body)


def test_arrays_whose_elements_share_a_place_or_others_memory_are_left_to_python():
    def body(node):
        x, y = np.arange(16.0), np.zeros(16)
        square = np.ones((4, 4))
        for call in (
            lambda: node.all_reduce(np.broadcast_to(x, (3, 16)), "sum", np.ones((3, 16))),
            lambda: node.all_reduce(np.lib.stride_tricks.sliding_window_view(x, 3), "sum"),
            lambda: node.all_reduce(x[::2], "sum", x[1::2]),
            lambda: node.all_reduce(square.T, "sum", square),
            lambda: node.all_reduce(x[::2], "sum", y[:8], 2),
            lambda: node.isend(x[::2], 0, 0),
            lambda: node.begin(2, x[::2], "sum", None, None, None),
        ):
            assert call() is NotImplemented
        assert node.all_reduce(x[:8], "sum", x[8:][::-1]) is not NotImplemented

    ranks.together(2, body)
