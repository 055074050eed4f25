/* How a program without Python meets the others of its job: who is who, and a communicator for each pair.
 * Also what hpcomm.c, the only file that includes this, needs besides: errors and waiting. docs/mpmd.md has
 * the handshake. */
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#undef _exit
#undef _Exit

#define BLOCK 256 /* ranks that have a captain */
#define FEW 64    /* ranks of a program that all hear of an end */
#define MOST 64   /* programs */
#define PATIENCE 300.0
#define LOOK 0.2      /* seconds between looks at whether others still live */
#define UNDER_WAY 1.0 /* seconds for messages that were sent before an end */

enum { BYE = 32099, LINES = 32101, ROSTER = 32102, OWN = 32111, LINKS = 32200 };

struct link { /* to one of the other programs */
  char name[65], kind[8];
  MPI_Comm inter, notices, merged; /* what users get; words and ends; fields */
  int size, is_first;
  double *gone; /* of each rank there: since when it is known to have ended; 0: it lives */
  void *sent[2]; /* grids, on their way */
  MPI_Request going[2];
};

static char own_name[65];
static MPI_Comm own = MPI_COMM_NULL;
static int own_rank, own_size, programs, has_begun_mpi;
static pid_t own_process;
static struct link link_to[MOST];

/* -- errors, memory, waiting -------------------------------------------------------------------------------
 */

static void nap(double seconds) {
  struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
  nanosleep(&time, NULL);
}

/* Say what happened, where and what to do, and end the job. */
__attribute__((noreturn, format(printf, 3, 4))) static void fail(const char *where, const char *hint,
                                                                 const char *what, ...) {
  int is_up = 0, is_over = 0;
  char text[4096];
  va_list more;
  va_start(more, what);
  vsnprintf(text, sizeof text, what, more);
  va_end(more);
  fflush(stdout);
  fprintf(stderr, "hpcomm: %s\n  where: %s in program '%s' (rank %d of %d)\n  try:   %s\n", text, where,
          own_name, own_rank, own_size, hint);
  MPI_Initialized(&is_up);
  MPI_Finalized(&is_over);
  if (is_up && !is_over) {
    if (programs) nap(0.5); /* others may have to say something, too */
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  _exit(1);
}

static void *memory(size_t nbytes) {
  void *made = calloc(nbytes + 1, 1);
  if (!made) fail("memory", "more memory, or fewer points", "there is no memory for %zu bytes", nbytes);
  return made;
}

static double seconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Note which ranks of the other program have ended. */
static void hear_ends(struct link *link) {
  int is_there = 1;
  char said[8];
  MPI_Status status;
  while (MPI_Iprobe(MPI_ANY_SOURCE, BYE, link->notices, &is_there, &status), is_there) {
    MPI_Recv(said, 8, MPI_BYTE, status.MPI_SOURCE, BYE, link->notices, MPI_STATUS_IGNORE);
    link->gone[status.MPI_SOURCE] = seconds();
  }
}

struct wait { /* for messages with some ranks of a program */
  const char *where;
  struct link *link; /* NULL: any */
  int count;
  const int *rank;
  double timeout, since, looked;
};

/* Let others have the core; now and then see whether there is still something to wait for. */
static void go_on(struct wait *wait) {
  double now = seconds();
  const char *peer = wait->link ? wait->link->name : "";
  if (wait->since == 0) wait->since = wait->looked = now;
  sched_yield();
  if (now - wait->looked < LOOK) return;
  wait->looked = now;
  if (wait->link) hear_ends(wait->link);
  for (int i = 0; wait->link && i < wait->count; i++) {
    double since = wait->link->gone[wait->rank[i]];
    if (since > 0 && now - since > UNDER_WAY)
      fail(wait->where, "look at what it printed; both programs must go on to the same time",
           "this needs rank %d of program '%s', which has ended", wait->rank[i], peer);
  }
  if (now - wait->since > wait->timeout)
    fail(wait->where,
         "look at what the other program does, or at the network; timeout of the field if it is slow",
         "waited %.0f s for %s%s", wait->timeout, *peer ? "program " : "the other programs", peer);
}

static void finish(int count, MPI_Request *requests, struct wait *wait) {
  int is_done = 0;
  while (MPI_Testall(count, requests, &is_done, MPI_STATUSES_IGNORE), !is_done) go_on(wait);
}

/* The next message, with a zero behind it. */
static void *hear(MPI_Comm comm, int source, int tag, int *nbytes, struct wait *wait) {
  int is_there = 0;
  MPI_Status status;
  while (MPI_Iprobe(source, tag, comm, &is_there, &status), !is_there) go_on(wait);
  MPI_Get_count(&status, MPI_BYTE, nbytes);
  char *got = memory((size_t)*nbytes);
  MPI_Recv(got, *nbytes, MPI_BYTE, status.MPI_SOURCE, tag, comm, MPI_STATUS_IGNORE);
  return got;
}

/* -- the programs meet (handshake.py) ----------------------------------------------------------------------
 */

static int by_name(const void *a, const void *b) { return strcmp(a, b); } /* links begin with their names */
static int ascending(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
static char *next_line(char *line) { return (line = strchr(line, '\n')) ? line + 1 : NULL; }

/* The ranks of the world that take part: all, or what HPCOMM_PROGRAMS ("ocean=0-1 air=2-2") names. */
static int members(int *ranks, int size) {
  int n = 0, first, last;
  const char *at = getenv("HPCOMM_PROGRAMS");
  if (!at || !*at)
    for (n = 0; n < size; n++) ranks[n] = n;
  else
    while ((at = strchr(at, '=')) && sscanf(++at, "%d-%d", &first, &last) == 2)
      for (; first <= last && n < size; first++) ranks[n++] = first;
  return n;
}

/* The others would wait for a rank that leaves without MPI_Finalize; MPICH's launcher calls that a good end.
 */
static void leave(int status) {
  int is_over = 0;
  MPI_Finalized(&is_over);
  if (is_over || getpid() != own_process) return; /* a forked child may */
  fprintf(stderr, "%s: leaves without MPI_Finalize, which ends the job\n", own_name);
  nap(0.1); /* MPICH's launcher drops what it has not read when the abort comes */
  MPI_Abort(MPI_COMM_WORLD, status ? status : 1);
}

static void at_exit(void) { leave(1); }

/* MPI_Finalize may wait for the others, and they for us: the first thing it does is to call this. */
static int farewell(MPI_Comm self, int key, void *value, void *state) {
  MPI_Request going;
  (void)self, (void)key, (void)value, (void)state;
  for (struct link *link = link_to; link < link_to + programs; link++)
    if (strcmp(link->kind, "plain"))
      for (int rank = 0; rank < link->size;
           rank += link->size <= FEW ? 1 : link->size / 2) { /* of many, two */
        MPI_Isend(NULL, 0, MPI_BYTE, rank, BYE, link->notices, &going);
        MPI_Request_free(&going);
      }
  return MPI_SUCCESS;
}

/* Append the next message with this tag to text, of so many bytes before; who has come with it. */
static int hear_lines(int source, int tag, char **text, int *used) {
  struct wait wait = {"init", NULL, 0, NULL, PATIENCE, 0, 0};
  int more, first, last, step, count = 0;
  char *got = hear(MPI_COMM_WORLD, source, tag, &more, &wait);
  for (char *at = got; at && *at; at = next_line(at))
    if (sscanf(at, "%d-%d/%d", &first, &last, &step) == 3) count += (last - first) / step + 1;
  if (!(*text = realloc(*text, (size_t)(*used + more + 1))))
    fail("init", "more memory", "there is no memory left");
  memcpy(*text + *used, got, (size_t)more + 1);
  free(got);
  *used += more;
  return count;
}

/* Lines go to the captain of a block, from there to the first rank, and all lines come back. */
static char *roster(int rank, int size) {
  int *ranks = memory((size_t)size * sizeof(int)), at = 0, known = 1, n = members(ranks, size);
  char *text = memory(512), host[65] = {0};
  gethostname(host, 64);
  int used = snprintf(text, 512, "%d-%d/1\t%s\tfields\t%s\t%s\t\n", rank, rank, own_name, own_name, host);
  while (at < n && ranks[at] != rank) at++;
  if (at == n)
    fail("init", "take that line out of the spec", "the spec says that it does not join (joins = false)");
  int block = at - at % BLOCK, end = block + BLOCK < n ? block + BLOCK : n;
  int above = rank == ranks[0] ? -1 : ranks[at == block ? 0 : block];
  int whole = above < 0 ? n : at == block ? end - block : 1;
  while (known < whole) known += hear_lines(MPI_ANY_SOURCE, LINES, &text, &used);
  if (above >= 0) {
    MPI_Send(text, used, MPI_BYTE, above, LINES, MPI_COMM_WORLD);
    used = 0;
    known = hear_lines(above, ROSTER, &text, &used);
  }
  if (at == block)
    for (int i = block + 1; i < end; i++) MPI_Send(text, used, MPI_BYTE, ranks[i], ROSTER, MPI_COMM_WORLD);
  if (above < 0)
    for (int i = BLOCK; i < n; i += BLOCK) MPI_Send(text, used, MPI_BYTE, ranks[i], ROSTER, MPI_COMM_WORLD);
  if (known != n)
    fail("init", "let every program of the job join", "%d ranks of the world did not join", n - known);
  free(ranks);
  return text;
}

/* Who they are: fills link_to, with all programs by their names, and the first rank of each. */
static int *read_roster(char *text, int size, int *leader, int *count) {
  int *mine = memory((size_t)size * sizeof(int)), first, last, step;
  char name[65], kind[8];
  for (char *line = text; line && *line; line = next_line(line)) {
    if (sscanf(line, "%d-%d/%d\t%64[^\t]\t%7[^\t]", &first, &last, &step, name, kind) != 5) continue;
    int i = 0;
    for (int rank = first; !strcmp(name, own_name) && rank <= last; rank += step) mine[(*count)++] = rank;
    while (i < programs && strcmp(link_to[i].name, name)) i++;
    if (i == MOST) fail("init", "fewer programs", "the job has more than %d programs", MOST);
    if (i == programs) programs++;
    strcpy(link_to[i].name, name), strcpy(link_to[i].kind, kind);
  }
  qsort(mine, (size_t)*count, sizeof *mine, ascending);
  qsort(link_to, (size_t)programs, sizeof *link_to, by_name);
  for (int i = 0; i < programs; i++) {
    leader[i] = size;
    for (char *line = text; line && *line; line = next_line(line))
      if (sscanf(line, "%d-%*d/%*d\t%64[^\t]", &first, name) == 2 && !strcmp(name, link_to[i].name))
        leader[i] = first < leader[i] ? first : leader[i];
  }
  return mine;
}

/* Whether known is the member of the ensemble called name that has this process's number. */
static int is_member(const char *name, const char *known) {
  const char *number = getenv("HPCOMM_MEMBER");
  size_t n = strlen(name);
  return number && known && !strncmp(known, name, n) && known[n] == '_' && atoi(known + n + 1) == atoi(number);
}

static void join(const char *name) {
  int is_up, rank, size, leader[MOST], count = 0, number = 0;
  const char *program = getenv("HPCOMM_PROGRAM"), *said = !name || is_member(name, program) ? program : name;
  if (own != MPI_COMM_NULL) fail("init", "one call", "this program has joined already");
  snprintf(own_name, sizeof own_name, "%s", said ? said : "");
  if (!said || !*said || strlen(said) > 64 || strpbrk(said, " ,=\t"))
    fail("init", "hpcomm_init(\"ocean\", &comm)", "'%s' is no name for a program", said ? said : "");
  MPI_Initialized(&is_up);
  if (!is_up) MPI_Init(NULL, NULL);
  has_begun_mpi = !is_up, own_process = getpid();
  atexit(at_exit);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  char *text = roster(rank, size);
  int *mine = read_roster(text, size, leader, &count);
  MPI_Group world, ours;
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  MPI_Group_incl(world, count, mine, &ours);
  MPI_Comm_create_group(MPI_COMM_WORLD, ours, OWN, &own);
  MPI_Comm_rank(own, &own_rank);
  MPI_Comm_size(own, &own_size);
  for (int i = 0; i < programs; i++) /* a link for each pair of names, in order */
    for (int j = i + 1; j < programs; j++, number++) {
      int peer = strcmp(link_to[i].name, own_name) ? i : j;
      struct link *link = link_to + peer;
      MPI_Comm parts; /* hpcomm's side keeps two duplicates for itself */
      if (strcmp(link_to[i].name, own_name) && strcmp(link_to[j].name, own_name)) continue;
      MPI_Intercomm_create(own, 0, MPI_COMM_WORLD, leader[peer], LINKS + number, &link->inter);
      MPI_Comm_dup(link->inter, &link->notices);
      MPI_Comm_dup(link->inter, &parts);
      MPI_Comm_remote_size(link->inter, &link->size);
      link->is_first = peer == j, link->merged = MPI_COMM_NULL;
      link->gone = memory((size_t)link->size * sizeof(double));
    }
  for (int i = 0; i < programs; i++) /* nobody is linked with itself */
    if (!strcmp(link_to[i].name, own_name)) {
      memmove(link_to + i, link_to + i + 1, (size_t)(programs - i - 1) * sizeof *link_to);
      programs--;
    }
  MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, farewell, &number, NULL);
  MPI_Comm_set_attr(MPI_COMM_SELF, number, NULL);
  MPI_Group_free(&world);
  MPI_Group_free(&ours);
  free(text), free(mine);
}

static struct link *link_of(const char *peer) {
  for (int i = 0; i < programs; i++)
    if (!strcmp(link_to[i].name, peer)) return link_to + i;
  for (int i = 0; i < programs; i++)
    if (is_member(peer, link_to[i].name)) return link_to + i;
  fail("link", "the name that it gives to init or join", "no program %s in this job", peer);
}
