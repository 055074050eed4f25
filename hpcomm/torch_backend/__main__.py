"""`mpirun -n 4 python -m hpcomm.torch_backend train.py ...`: run it with the variables that torchrun sets."""

from ..job.as_main import run
from .rendezvous import announce

if __name__ == "__main__":
    run("hpcomm.torch_backend", announce)
