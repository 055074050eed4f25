"""`mpirun -n 4 python -m hpcomm.compat program.py ...`: run an mpi4py program over hpcomm, as it is."""

from ..job.as_main import run
from .in_place import put_in_place

if __name__ == "__main__":
    run("hpcomm.compat", put_in_place)
