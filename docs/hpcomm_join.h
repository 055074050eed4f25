/* Take part in a job of hpcomm programs from C: own world and one inter-communicator per program.
 *
 *     struct hpcomm_job job;
 *     hpcomm_join("lake", &job);                        // instead of using MPI_COMM_WORLD
 *     MPI_Comm ocean = hpcomm_link(&job, "ocean");      // ranks there are the ocean's
 *
 * Speaks the handshake that docs/mpmd.md describes; works with Open MPI and MPICH. Copy it freely.
 */
#ifndef HPCOMM_JOIN_H
#define HPCOMM_JOIN_H
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define HPCOMM_BLOCK 256 /* ranks that have a captain */
#define HPCOMM_FEW 64    /* ranks of a program that all hear of an end */
#define HPCOMM_MOST 64 /* programs */

struct hpcomm_job {
  char name[HPCOMM_MOST][65]; /* of the programs, sorted */
  MPI_Comm link[HPCOMM_MOST]; /* to each of them; MPI_COMM_NULL to oneself */
  MPI_Comm own;               /* this program's own world */
  int programs;
};

static char hpcomm_name[65]; /* of this program */
static MPI_Comm hpcomm_partners[HPCOMM_MOST]; /* to the hpcomm programs */
static int hpcomm_count;                      /* of those */
static pid_t hpcomm_process;

static int hpcomm_compare(const void *a, const void *b) { return strcmp(a, b); }

/* The ranks of the world that take part: all, or what HPCOMM_PROGRAMS ("ocean=0-1 air=2-2") names. */
static int hpcomm_members(int *ranks, int size) {
  int n = 0, first, last;
  const char *at = getenv("HPCOMM_PROGRAMS");
  if (!at || !*at)
    for (n = 0; n < size; n++) ranks[n] = n;
  else
    while ((at = strchr(at, '=')) && sscanf(++at, "%d-%d", &first, &last) == 2)
      for (; first <= last && n < size; first++) ranks[n++] = first;
  return n;
}

/* The others would wait for a rank that leaves without MPI_Finalize; MPICH's launcher calls that a good end. */
static void hpcomm_leave(int status) {
  int is_over = 0;
  struct timespec heard = {0, 100000000};
  MPI_Finalized(&is_over);
  if (is_over || getpid() != hpcomm_process) return; /* a forked child may */
  fprintf(stderr, "%s: leaves without MPI_Finalize, which ends the job\n", hpcomm_name);
  nanosleep(&heard, NULL); /* MPICH's launcher drops what it has not read when the abort comes */
  MPI_Abort(MPI_COMM_WORLD, status ? status : 1);
}

static void hpcomm_at_exit(void) { hpcomm_leave(1); }

/* Functions registered with atexit do not hear of these: this file's own are replaced. */
static void hpcomm_exit_at_once(int status) {
  if (*hpcomm_name) hpcomm_leave(status);
  _exit(status);
}
#define _exit(status) hpcomm_exit_at_once(status)
#define _Exit(status) hpcomm_exit_at_once(status)

/* MPI_Finalize may wait for the others, and they for us: the first thing it does is to call this. */
static int hpcomm_farewell(MPI_Comm self, int key, void *value, void *state) {
  int size;
  MPI_Request going;
  (void)self, (void)key, (void)value, (void)state;
  for (int i = 0; i < hpcomm_count; i++) {
    MPI_Comm_remote_size(hpcomm_partners[i], &size);
    for (int rank = 0; rank < size; rank += size <= HPCOMM_FEW ? 1 : size / 2) { /* of many, two */
      MPI_Isend(NULL, 0, MPI_BYTE, rank, 32099, hpcomm_partners[i], &going);
      MPI_Request_free(&going);
    }
  }
  return MPI_SUCCESS;
}

/* Append the next message with this tag to text, of so many bytes before; who has come with it. */
static int hpcomm_hear(int source, int tag, char **text, int *used) {
  MPI_Status status;
  int more, first, last, step, count = 0;
  MPI_Probe(source, tag, MPI_COMM_WORLD, &status);
  MPI_Get_count(&status, MPI_BYTE, &more);
  *text = realloc(*text, *used + more + 1);
  MPI_Recv(*text + *used, more, MPI_BYTE, status.MPI_SOURCE, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  (*text)[*used + more] = 0;
  for (char *at = *text + *used; at && *at; at = strchr(at, '\n'), at += at != NULL)
    if (sscanf(at, "%d-%d/%d", &first, &last, &step) == 3) count += (last - first) / step + 1;
  *used += more;
  return count;
}

static int hpcomm_ascending(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

static void hpcomm_join(const char *name, struct hpcomm_job *job) {
  int rank, size, n, i, j, count = 0, number = 0;
  snprintf(hpcomm_name, sizeof hpcomm_name, "%s", name);
  hpcomm_process = getpid();
  atexit(hpcomm_at_exit);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  int *ranks = malloc(size * sizeof(int)), *mine = malloc(size * sizeof(int));
  n = hpcomm_members(ranks, size);
  char *text = malloc(512), host[65] = {0}, kind[HPCOMM_MOST][8] = {""}, theirs[65], what[8];
  int leader[HPCOMM_MOST], first, last, step, at = 0, used, known = 1;
  gethostname(host, 64);
  used = snprintf(text, 512, "%d-%d/1\t%s\tplain\t%s\t%s\t\n", rank, rank, name, name, host);
  while (ranks[at] != rank) at++;
  int block = at - at % HPCOMM_BLOCK, end = block + HPCOMM_BLOCK < n ? block + HPCOMM_BLOCK : n;
  /* 1. lines to the captain of a block, from there to the first rank, and all lines back */
  int above = rank == ranks[0] ? -1 : ranks[at == block ? 0 : block];
  int whole = above < 0 ? n : at == block ? end - block : 1;
  while (known < whole) known += hpcomm_hear(MPI_ANY_SOURCE, 32101, &text, &used);
  if (above >= 0) {
    MPI_Send(text, used, MPI_BYTE, above, 32101, MPI_COMM_WORLD);
    used = 0;
    known = hpcomm_hear(above, 32102, &text, &used);
  }
  if (at == block)
    for (i = block + 1; i < end; i++) MPI_Send(text, used, MPI_BYTE, ranks[i], 32102, MPI_COMM_WORLD);
  if (above < 0)
    for (i = HPCOMM_BLOCK; i < n; i += HPCOMM_BLOCK)
      MPI_Send(text, used, MPI_BYTE, ranks[i], 32102, MPI_COMM_WORLD);
  if (known != n) {
    fprintf(stderr, "%s: %d ranks of the world did not join\n", name, n - known);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  job->programs = 0;
  for (char *line = text; line && *line; line = strchr(line, '\n'), line += line != NULL) {
    /* 2. who they are */
    if (sscanf(line, "%d-%d/%d\t%64[^\t]\t%7[^\t]", &first, &last, &step, theirs, what) != 5) continue;
    for (i = first; !strcmp(theirs, name) && i <= last; i += step) mine[count++] = i;
    for (j = 0; j < job->programs && strcmp(job->name[j], theirs); j++) {}
    if (j == job->programs && j < HPCOMM_MOST) strcpy(job->name[job->programs++], theirs);
  }
  qsort(mine, count, sizeof *mine, hpcomm_ascending);
  qsort(job->name, job->programs, sizeof job->name[0], hpcomm_compare);
  for (i = 0; i < job->programs; i++) leader[i] = size;
  for (char *line = text; line && *line; line = strchr(line, '\n'), line += line != NULL) {
    if (sscanf(line, "%d-%*d/%*d\t%64[^\t]\t%7[^\t]", &first, theirs, what) != 3) continue;
    for (j = 0; j < job->programs && strcmp(job->name[j], theirs); j++) {}
    if (j < job->programs && first < leader[j]) leader[j] = first, strcpy(kind[j], what);
  }
  MPI_Group world, own; /* 3. a communicator of this program's ranks */
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  MPI_Group_incl(world, count, mine, &own);
  MPI_Comm_create_group(MPI_COMM_WORLD, own, 32111, &job->own);
  for (i = 0; i < job->programs; i++) /* 4. one inter-communicator for each pair of names, in order */
    for (j = i + 1; j < job->programs; j++, number++) {
      int peer = strcmp(job->name[i], name) ? i : j;
      if (strcmp(job->name[i], name) && strcmp(job->name[j], name)) continue;
      MPI_Intercomm_create(job->own, 0, MPI_COMM_WORLD, leader[peer], 32200 + number, &job->link[peer]);
      MPI_Comm objects, parts; /* hpcomm's side keeps two duplicates for itself */
      MPI_Comm_dup(job->link[peer], &objects);
      MPI_Comm_dup(job->link[peer], &parts);
      if (!strcmp(kind[peer], "hpcomm")) hpcomm_partners[hpcomm_count++] = objects;
    }
  MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, hpcomm_farewell, &number, NULL);
  MPI_Comm_set_attr(MPI_COMM_SELF, number, NULL);
  for (i = 0; i < job->programs; i++)
    if (!strcmp(job->name[i], name)) job->link[i] = MPI_COMM_NULL;
  MPI_Group_free(&world);
  MPI_Group_free(&own);
  free(text), free(ranks), free(mine);
}

static MPI_Comm hpcomm_link(struct hpcomm_job *job, const char *peer) {
  for (int i = 0; i < job->programs; i++)
    if (!strcmp(job->name[i], peer)) return job->link[i];
  fprintf(stderr, "no program %s in this job\n", peer);
  MPI_Abort(MPI_COMM_WORLD, 1);
  return MPI_COMM_NULL;
}
#endif
