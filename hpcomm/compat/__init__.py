"""Other libraries' surfaces over a Communicator: `from hpcomm.compat import MPI` is mpi4py's."""
