/* A C program among hpcomm programs: mpicc -o lake lake.c; mpirun -n 2 ./lake : -n 1 python ocean.py ... */
#include "hpcomm_join.h"

int main(int argc, char **argv) {
  struct hpcomm_job job;
  double value, theirs, inflow = 0;
  int rank;
  MPI_Init(&argc, &argv);
  hpcomm_join("lake", &job);
  MPI_Comm_rank(job.own, &rank);
  value = 10.0 * (rank + 1);
  for (int i = 0; i < job.programs; i++)
    if (job.link[i] != MPI_COMM_NULL)
      MPI_Allreduce(&value, &theirs, 1, MPI_DOUBLE, MPI_SUM, job.link[i]);
  if (rank == 0)
    for (int i = 0; i < job.programs; i++)
      if (job.link[i] != MPI_COMM_NULL) {
        MPI_Recv(&inflow, 1, MPI_DOUBLE, 0, 3, job.link[i], MPI_STATUS_IGNORE);
        printf("lake got %.1f and %.1f from %s\n", theirs, inflow, job.name[i]);
      }
  MPI_Finalize();
  return 0;
}
