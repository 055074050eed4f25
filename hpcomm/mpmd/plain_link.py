"""Link to a program that uses MPI without hpcomm; it has no operations on objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from ..communicator.communicator import Communicator
from ..errors import UsageError


class PlainCommunicator(Communicator):
    """Refuses the verbs of objects and ragged arrays, whose messages only hpcomm knows."""

    @property
    def order(self) -> str:
        """That of the MPI library, whose calls the other program makes."""
        return "fast"

    @order.setter
    def order(self, order: str) -> None:
        if order != "fast":
            what = f"the program at the other end of '{self.name}' speaks plain MPI, whose order is its own"
            raise UsageError(what, hint="all_gather, and add up what has come").located("order", self)


def _refusal(verb: str) -> Callable[..., NoReturn]:
    def refuse(comm: Communicator, *args: object, **options: object) -> NoReturn:
        raise UsageError(
            f"the program at the other end of '{comm.name}' speaks plain MPI, and {verb} hpcomm's own way",
            hint="send arrays: send, recv, all_reduce and their kin are MPI's own calls",
        ).located(verb, comm)

    return refuse


for _name in dir(Communicator):
    if _name.endswith(("_object", "_ragged")):
        setattr(PlainCommunicator, _name, _refusal(_name))
