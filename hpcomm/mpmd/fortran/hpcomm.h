/* Couple a program in C with others of its job: fields by name, and MPI between the programs.
 *
 *     MPI_Comm comm;                                            // the ranks of this program
 *     hpcomm_init("river", &comm);                              // instead of using MPI_COMM_WORLD
 *     int grid = hpcomm_grid_points(n, numbers, lonlat);        // this rank's part
 *     int flow = hpcomm_field("flow", HPCOMM_GIVES, grid, 8, 1);
 *     hpcomm_connect(0.0);
 *     hpcomm_put(flow, values, n, time);                        // const double *values; hpcomm_get(...)
 *     hpcomm_end();
 *
 * All calls but put, get and time are collective over the program. Errors end the job, with a message. Works
 * with Open MPI and MPICH, in C11 and C++: compile hpcomm.c, which is C, with the program. docs/fortran.md
 * tells more.
 */
#ifndef HPCOMM_H
#define HPCOMM_H
#include <mpi.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#ifdef __cplusplus
extern "C" {
#endif

#define HPCOMM_GIVES 0
#define HPCOMM_TAKES 1

/* Meet the other programs, and get this one's ranks. Calls MPI_Init if nobody has. name: NULL: as in the
 * spec. */
void hpcomm_init(const char *name, MPI_Comm *comm);

/* The inter-communicator to another program; the ranks there are its own. */
MPI_Comm hpcomm_link(const char *peer);

/* A grid: which points this rank has, by their global numbers from 0, in the order of the values. What the
 * spec says of a field's grid need not be said here. Returns its number. */
int hpcomm_grid(long count, const int64_t *numbers);
/* Rows lat .. lat + nlats - 1, and of these columns lon .. lon + nlons - 1, of nlat x nlon points, row by
 * row. */
int hpcomm_grid_rectangle(long nlat, long nlon, long lat, long nlats, long lon, long nlons);
/* Points with longitude and latitude in degrees, shape (count, 2). */
int hpcomm_grid_points(long count, const int64_t *numbers, const double *lonlat);
/* Cells with the longitude and latitude of their corners, shape (count, corners, 2). */
int hpcomm_grid_cells(long count, const int64_t *numbers, int corners, const double *lonlat);

/* A field that this program gives or takes. kind: 4 (float) or 8 (double); width: numbers per point. Returns
 * its number. Its values have the shape (points, width); by component: (width, points). */
int hpcomm_field(const char *name, int role, int grid, int kind, int width);
int hpcomm_field_by_component(const char *name, int role, int grid, int kind, int width);

/* Plan all fields, with all programs. start: the time of the model, in seconds; the same everywhere. */
void hpcomm_connect(double start);

/* Send a copy of the values, or fill them, as those of this time of the model. count: of all numbers here. */
#ifndef __cplusplus
#define hpcomm_put(field, values, count, time) \
  hpcomm_put_kind(field, values, HPCOMM_KIND(values), count, time)
#define hpcomm_get(field, values, count, time) \
  hpcomm_get_kind(field, values, HPCOMM_KIND(values), count, time)
#define HPCOMM_KIND(values) _Generic((values), float *: 4, const float *: 4, double *: 8, const double *: 8)
#endif
void hpcomm_put_kind(int field, const void *values, int kind, long count, double time);
void hpcomm_get_kind(int field, void *values, int kind, long count, double time);

/* The time that values which were put, or taken, last belong to; -1 before, and without a period. */
double hpcomm_time(int field);

/* Write the state of the coupling into path/NAME, a folder: what was put and is not taken yet, and means under
 * way. All programs call it, in Python me.save(path, time), behind the puts of that time. What the model has,
 * its arrays too, it keeps itself. */
void hpcomm_save(const char *path, double time);
/* Go on from what was saved at this time, on any number of ranks, in place of hpcomm_connect. */
void hpcomm_restore(const char *path, double time);

/* Wait until all that was put has been taken. Calls MPI_Finalize if hpcomm_init has called MPI_Init. */
void hpcomm_end(void);

/* Functions registered with atexit do not hear of these: those of files that include this are replaced.
 * C++'s std::_Exit is not. */
void hpcomm_exit_at_once(int status) __attribute__((noreturn));
#define _exit(status) hpcomm_exit_at_once(status)
#ifndef __cplusplus
#define _Exit(status) hpcomm_exit_at_once(status)
#else
}
inline void hpcomm_put(int field, const double *values, long count, double time) {
  hpcomm_put_kind(field, values, 8, count, time);
}
inline void hpcomm_put(int field, const float *values, long count, double time) {
  hpcomm_put_kind(field, values, 4, count, time);
}
inline void hpcomm_get(int field, double *values, long count, double time) {
  hpcomm_get_kind(field, values, 8, count, time);
}
inline void hpcomm_get(int field, float *values, long count, double time) {
  hpcomm_get_kind(field, values, 4, count, time);
}
#endif
#endif
