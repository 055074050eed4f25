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

#define HPCOMM_CARD 512
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
    for (int rank = 0; rank < size; rank++) {
      MPI_Isend(NULL, 0, MPI_BYTE, rank, 32099, hpcomm_partners[i], &going);
      MPI_Request_free(&going);
    }
  }
  return MPI_SUCCESS;
}

static void hpcomm_join(const char *name, struct hpcomm_job *job) {
  int rank, size, n, i, j, count = 0, number = 0;
  snprintf(hpcomm_name, sizeof hpcomm_name, "%s", name);
  hpcomm_process = getpid();
  atexit(hpcomm_at_exit);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  int *ranks = malloc(size * sizeof(int)), *mine = malloc(size * sizeof(int));
  n = hpcomm_members(ranks, size);
  char *cards = calloc(n, HPCOMM_CARD), card[HPCOMM_CARD] = {0}, host[65] = {0};
  gethostname(host, 64);
  snprintf(card, sizeof card, "hpcomm 1\n%s\nplain\n%s\n%s\n%d\n", name, name, host, (int)getpid());
  if (rank == ranks[0]) { /* 1. cards to the first rank, all cards back from it */
    memcpy(cards, card, HPCOMM_CARD);
    for (i = 1; i < n; i++)
      MPI_Recv(cards + i * HPCOMM_CARD, HPCOMM_CARD, MPI_BYTE, ranks[i], 32101, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
    for (i = 1; i < n; i++)
      MPI_Send(cards, n * HPCOMM_CARD, MPI_BYTE, ranks[i], 32102, MPI_COMM_WORLD);
  } else {
    MPI_Send(card, HPCOMM_CARD, MPI_BYTE, ranks[0], 32101, MPI_COMM_WORLD);
    MPI_Recv(cards, n * HPCOMM_CARD, MPI_BYTE, ranks[0], 32102, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  job->programs = 0;
  for (i = 0; i < n; i++) { /* 2. the names on them; an empty card: that rank did not come */
    char theirs[65] = "";
    if (sscanf(cards + i * HPCOMM_CARD, "hpcomm 1\n%64[^\n]", theirs) != 1) {
      fprintf(stderr, "%s: rank %d of the world did not join\n", name, ranks[i]);
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
    if (!strcmp(theirs, name)) mine[count++] = ranks[i];
    for (j = 0; j < job->programs && strcmp(job->name[j], theirs); j++) {}
    if (j == job->programs && j < HPCOMM_MOST) strcpy(job->name[job->programs++], theirs);
  }
  qsort(job->name, job->programs, sizeof job->name[0], hpcomm_compare);
  MPI_Group world, own; /* 3. a communicator of this program's ranks */
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  MPI_Group_incl(world, count, mine, &own);
  MPI_Comm_create_group(MPI_COMM_WORLD, own, 32111, &job->own);
  for (i = 0; i < job->programs; i++) /* 4. one inter-communicator for each pair of names, in order */
    for (j = i + 1; j < job->programs; j++, number++) {
      int peer = strcmp(job->name[i], name) ? i : j, leader = 0;
      if (strcmp(job->name[i], name) && strcmp(job->name[j], name)) continue;
      while (strncmp(strchr(cards + leader * HPCOMM_CARD, '\n') + 1, job->name[peer],
                     strlen(job->name[peer])) ||
             strchr(cards + leader * HPCOMM_CARD, '\n')[1 + strlen(job->name[peer])] != '\n')
        leader++;
      MPI_Intercomm_create(job->own, 0, MPI_COMM_WORLD, ranks[leader], 32200 + number, &job->link[peer]);
      MPI_Comm objects, parts; /* hpcomm's side keeps two duplicates for itself */
      MPI_Comm_dup(job->link[peer], &objects);
      MPI_Comm_dup(job->link[peer], &parts);
      char kind[8] = "";
      sscanf(cards + leader * HPCOMM_CARD, "hpcomm 1\n%*[^\n]\n%7[^\n]", kind);
      if (!strcmp(kind, "hpcomm")) hpcomm_partners[hpcomm_count++] = objects;
    }
  MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, hpcomm_farewell, &number, NULL);
  MPI_Comm_set_attr(MPI_COMM_SELF, number, NULL);
  for (i = 0; i < job->programs; i++)
    if (!strcmp(job->name[i], name)) job->link[i] = MPI_COMM_NULL;
  MPI_Group_free(&world);
  MPI_Group_free(&own);
  free(cards), free(ranks), free(mine);
}

static MPI_Comm hpcomm_link(struct hpcomm_job *job, const char *peer) {
  for (int i = 0; i < job->programs; i++)
    if (!strcmp(job->name[i], peer)) return job->link[i];
  fprintf(stderr, "no program %s in this job\n", peer);
  MPI_Abort(MPI_COMM_WORLD, 1);
  return MPI_COMM_NULL;
}
#endif
