/* Eight-byte collectives of the MPI library, called from C: us a call, the median of rounds. See from_c.py. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 21, CALLS = 20000 };
static double x = 1, y;

static void all_reduce(void) { MPI_Allreduce(&x, &y, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD); }
static void broadcast(void) { MPI_Bcast(&x, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD); }
static void barrier(void) { MPI_Barrier(MPI_COMM_WORLD); }

static int ascending(const void *a, const void *b) {
  return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static double median_of(void (*call)(void)) {
  double took[ROUNDS];
  for (int i = 0; i < CALLS; i++) call();
  for (int r = 0; r < ROUNDS; r++) {
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime();
    for (int i = 0; i < CALLS; i++) call();
    took[r] = (MPI_Wtime() - begin) / CALLS * 1e6;
  }
  qsort(took, ROUNDS, sizeof *took, ascending);
  return took[ROUNDS / 2];
}

int main(int argc, char **argv) {
  int rank;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  double times[] = {median_of(all_reduce), median_of(broadcast), median_of(barrier)};
  if (rank == 0) printf("%.4f %.4f %.4f\n", times[0], times[1], times[2]);
  MPI_Finalize();
  return 0;
}
