/* A C program among others, by MPI alone; fields are in docs/fortran.md. To build it: `hpcomm fortran`.
 * mpirun -n 2 ./lake air ocean : -n 1 python air.py : -n 1 python ocean.py
 */
#include "hpcomm.h"

#include <stdio.h>

int main(int argc, char **argv) {
  MPI_Comm comm;
  double value, theirs, inflow = 0;
  int rank;
  hpcomm_init("lake", &comm);
  MPI_Comm_rank(comm, &rank);
  value = 10.0 * (rank + 1);
  for (int i = 1; i < argc; i++) {
    MPI_Allreduce(&value, &theirs, 1, MPI_DOUBLE, MPI_SUM, hpcomm_link(argv[i]));
    if (rank == 0) {
      MPI_Recv(&inflow, 1, MPI_DOUBLE, 0, 3, hpcomm_link(argv[i]), MPI_STATUS_IGNORE);
      printf("lake got %.1f and %.1f from %s\n", theirs, inflow, argv[i]);
    }
  }
  hpcomm_end();
  return 0;
}
