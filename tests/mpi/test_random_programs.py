"""Some random programs: random_programs.py runs many, alone and with more to say."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from random_mixtures import Mixture
from random_programs import again
from random_runner import Runner
from random_steps import Program
from random_writer import program

PROGRAMS = 12  # for each first seed


@pytest.mark.parametrize("first", [1, 1001, 2001])
def test_random_programs_give_what_plain_numpy_makes_of_them(
    own_comm: Any, together: Callable[..., None], first: int
) -> None:
    for seed in range(first, first + PROGRAMS):
        made = program(seed, own_comm.size)
        runner = Runner(made, own_comm)

        def body(runner: Runner = runner) -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                problems = runner.run()
            assert not problems, "\n".join(problems)

        together(f"{again(seed, own_comm.size)}\n{made}", body)


MIXTURES = {  # the steps of random_mixtures.py that are taken, and some seeds
    "of all": ((), (1, 2, 3, 4, 5)),
    "of fields and their files": (("fields", "points"), (1, 2)),
    "of two programs": (("coupled",), (1, 2)),
    "of graphs, windows, one rank's refusals": (("neighbours", "epochs", "one_refuses"), (1, 2, 3)),
}


@pytest.mark.parametrize("what", MIXTURES)
def test_random_mixtures_give_what_they_should(
    own_comm: Any, together: Callable[..., None], what: str
) -> None:
    only, seeds = MIXTURES[what]
    for seed in seeds:
        mixture = Mixture(seed, own_comm, 6, False, only)

        def body(mixture: Mixture = mixture) -> None:
            problems = mixture.run()
            assert not problems, "\n".join(problems)

        words = f"--seed {seed} --steps 6 --show" + f" --only {','.join(only)}" * bool(only)
        together(f"hpcomm run -n {own_comm.size} python tests/mpi/random_mixtures.py {words}", body)


@pytest.mark.parametrize("size", [1, 3])
def test_a_program_is_the_same_on_all_ranks_and_without_some_calls(size: int) -> None:
    for seed in range(20):
        made: Program = program(seed, size)
        assert str(made) == str(program(seed, size))
        some = [step.key for step in made.steps][::2]
        less = program(seed, size).only(some)
        assert {step.key for step in less.steps if step.verb != "wait"} <= set(some)
