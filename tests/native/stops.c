/* stops.c: a rank that ends (KILL), stands still (STOP) or hears of Ctrl-C
   (INT) at its n-th store, for every n.

   stops RANKS KILL|STOP|INT [direct] [ahead] [EVERY]: ranks are forked
   processes; with `ahead`, they do not wait for all in every call. All make the
   same calls; rank 1 is struck at a store, the next time at the next one, until
   no store is left. Of the others: whoever passes a call has the right result,
   and none waits for ever. After INT the struck rank fails one call and goes
   on: all count alike, as the last call shows, in which nobody is struck. */
#include "node.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CALLS = 13, MOST = 30000, SHARE = 0, MESSAGES = -1 };
struct shared {
  atomic_int dead, done, wrong, points, reached;
};
static struct shared *shared;
static int strike_at = -1, points, signal_number, interrupted, struck;
static int direct, ahead, every = 1, is_last;

void node_stop_point(void) {
  if (strike_at < 0 || (is_last && signal_number == SIGINT))
    return;
  if (points++ == strike_at) {
    struck = 1;
    atomic_store(&shared->reached, 1);
    if (signal_number == SIGINT)
      interrupted = 1;
    else
      raise(signal_number);
  }
}

static void *leave(void) { return &points; }
static void back(void *state) { (void)state; }
static int look(struct node *n, int why, int rank) {
  (void)n, (void)rank;
  if (why != WHY_WAITS)
    return -1;
  if (interrupted)
    return interrupted = 0, -1;
  return atomic_load(&shared->dead) ? -1 : 0;
}
static const struct node_host host = {leave, back, look};

static char *memory(void *program, int rank, size_t block, size_t nbytes,
                    int is_short) {
  const struct call *c = program;
  (void)block, (void)is_short;
  return c->out + (size_t)rank * nbytes;
}

/* Everybody's x to everybody, as blocks that are read where they are. */
static int share(struct node *n, struct call *c) {
  const size_t one = 1;
  const struct node_part block = {(uintptr_t)c->x, c->nbytes};
  c->verb = BY_ALL_GATHER;
  c->signature = 77;
  memcpy(c->out + (size_t)n->rank * c->nbytes, c->x, c->nbytes);
  return share_run(n, c, &block, &one, memory, c);
}

/* A short message and a long one to the next rank, and from the last one; out: the latter. */
static int messages(struct node *n, struct mailbox *box, const struct call *c) {
  static struct message m[4]; /* under way still, where a wait ends */
  static float few[1];
  const int next = (n->rank + 1) % n->size, last = (n->rank + n->size - 1) % n->size;
  if (!mail_connect(box, next))
    return -1;
  m[0] = (struct message){.at = (char *)(uintptr_t)c->x, .nbytes = 4, .tag = 1, .peer = next};
  m[1] = (struct message){.at = (char *)(uintptr_t)c->x, .nbytes = c->nbytes, .tag = 2, .peer = next};
  m[2] = (struct message){.at = c->out, .nbytes = c->nbytes, .tag = 2, .peer = last};
  m[3] = (struct message){.at = (char *)few, .nbytes = 4, .tag = 1, .peer = MAIL_ANYBODY};
  for (int i = 0; i < 4; i++)
    i < 2 ? mail_send(box, &m[i]) : mail_receive(box, &m[i]);
  for (int i = 3; i >= 0; i--) {
    struct node wait = {.host = &host};
    while (mail_wait(box, &m[i], &wait, n->timeout))
      if (signal_number != SIGINT)
        return -1; /* else it is under way still, and x may not change yet */
    if (m[i].state != MAIL_DONE)
      return -1;
  }
  return 0;
}

static void body(struct segment *segment, struct node_place *place, int rank) {
  const uint64_t from = direct ? 0 : UINT64_MAX;
  struct node n = {.host = &host,
                   .checks = 1,
                   .synchronous = !ahead,
                   .direct = 1,
                   .direct_from = from,
                   .timeout = /* else nobody is given up: a busy machine is slow */
                       signal_number == SIGSTOP ? 0.03 : 60};
  static float x[MOST], out[MOST * 4];
  node_attach(&n, segment, place, rank);
  struct mailbox *box = mail_open(&n);
  for (int i = 0; i < CALLS; i++) {
    static const int verbs[CALLS] = {
        BY_ALL_REDUCE, BY_BROADCAST,  BY_ALL_REDUCE, BY_ALL_GATHER,
        BY_BARRIER,    SHARE,         BY_ALL_REDUCE, BY_ALL_REDUCE,
        SHARE,         MESSAGES,      BY_BROADCAST,  BY_ALL_REDUCE,
        BY_ALL_REDUCE};
    static const size_t counts[CALLS] = {2, 3,    MOST, MOST, 0,    MOST,
                                         1, MOST, MOST, MOST, MOST, 1,    1};
    struct call c = {.verb = verbs[i],
                     .dtype = F32,
                     .count = counts[i],
                     .nbytes = counts[i] * 4,
                     .x = (char *)x,
                     .out = (char *)out};
    for (size_t k = 0; k < c.count; k++)
      x[k] = (float)(rank + i);
    is_last = i == CALLS - 1;
    if (interrupted && rank == 1)
      interrupted = 0; /* heard of between two calls */
    if (verbs[i] == SHARE        ? share(&n, &c)
        : verbs[i] == MESSAGES   ? messages(&n, box, &c)
        : verbs[i] == BY_BARRIER ? node_arrive_and_wait(&n, BY_BARRIER, NULL, 0)
                                 : node_run(&n, &c)) {
      if (signal_number == SIGINT)
        continue;
      break;
    }
    for (size_t k = 0; k < c.count; k++) {
      float want = c.verb == BY_ALL_REDUCE
                       ? (float)(n.size * (n.size - 1) / 2 + i * n.size)
                   : c.verb == MESSAGES
                       ? (float)((rank + n.size - 1) % n.size + i)
                       : (float)i;
      if (out[k] != want) {
        printf("signal %d at store %d: rank %d, call %d: %g for %g\n",
               signal_number, strike_at, rank, i, out[k], want);
        atomic_store(&shared->wrong, 1);
        break;
      }
    }
    if (i == CALLS - 1)
      atomic_fetch_add(&shared->done, 1);
  }
  mail_close(box);
  node_leave(segment, place);
  if (strike_at >= 0)
    atomic_store(&shared->points, points);
}

static int all_end(pid_t *pids, int ranks) {
  int left = ranks, status;
  for (int waited = 0; left && waited < 30000; waited++) {
    pid_t pid = waitpid(-1, &status, WNOHANG | WUNTRACED);
    if (pid > 0 && WIFSTOPPED(status)) {
      struct timespec a_while = {0, 50000000};
      nanosleep(&a_while, NULL); /* longer than the timeout of the others */
      kill(pid, SIGCONT);
    } else if (pid > 0) {
      if (WIFSIGNALED(status)) {
        atomic_store(&shared->dead, 1);
        if (WTERMSIG(status) != signal_number)
          return printf("ended by signal %d\n", WTERMSIG(status)), 0;
      }
      left--;
    } else {
      nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
  }
  for (int r = 0; left && r < ranks; r++)
    kill(pids[r], SIGKILL);
  return !left;
}

int main(int argc, char **argv) {
  if (argc < 3)
    return 2;
  const int ranks = atoi(argv[1]);
  for (int i = 3; i < argc; i++) {
    direct |= argv[i][0] == 'd';
    ahead |= argv[i][0] == 'a';
    every = atoi(argv[i]) ? atoi(argv[i]) : every;
  }
  signal_number = argv[2][0] == 'K'   ? SIGKILL
                  : argv[2][0] == 'S' ? SIGSTOP
                                      : SIGINT;
  shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                -1, 0);
  int strikes = 0, slow = 0;
  for (int n = 0;; n += every) {
    memset(shared, 0, sizeof *shared);
    struct segment segment;
    int file = memfd_create("stops", 0);
    const size_t nbytes = segment_bytes(16u << 20);
    if (ftruncate(file, (off_t)nbytes) ||
        segment_open(&segment, file, nbytes, 1))
      return 3;
    struct node_place *place = node_reserve(&segment, ranks, NULL);
    pid_t pids[NODE_RANKS];
    for (int r = 0; r < ranks; r++) {
      pids[r] = fork();
      if (pids[r])
        continue;
      if (r == 1)
        strike_at = n;
      body(&segment, place, r);
      fflush(stdout);
      _exit(0);
    }
    if (!all_end(pids, ranks))
      return printf("store %d: somebody waits for ever\n", n), 1;
    segment_close(&segment);
    close(file);
    if (shared->wrong)
      return 1;
    if (signal_number == SIGINT && shared->done < 1 && shared->reached)
      return printf("store %d: nobody got to the end\n", n), 1;
    if (shared->reached) {
      strikes++;
    } else if (shared->done == ranks) {
      break;
    } else if (++slow > 20) {
      return printf("store %d: calls are late without a stop\n", n), 1;
    } else {
      n -= every; /* a busy machine let a call be late before this store */
    }
  }
  printf("right: struck at %d stores\n", strikes);
  return strikes < 50 / every;
}
