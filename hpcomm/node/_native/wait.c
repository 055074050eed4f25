/* wait.c: the one loop that waits for a word of shared memory.

   The first looks are made by node_wait (node.h), some microseconds of them; most waits end there. Then:

     unlocked: other threads of the program may run
       look                      up to SPIN_NS: on a core of its own a rank that yields may lose a slice of ms
       look, yield the core      up to YIELD_NS: whoever has work to do gets the core
       look, sleep               then, a fiftieth of what has been waited for, up to SLEEP_NS; from 0.1 s of waiting
                                 on a five-hundredth, up to LOOK_NS: so long waits cost others little
     every LOOK_NS, locked: the host looks (signals, progress of MPI, who lives); it may end the wait
     past the timeout: the wait ends

   Where ranks are more than cores (spins 0), both phases of looking alone are left out: who spins keeps the core from
   whom he waits for. */
#include "node.h"

#include <sched.h>
#include <time.h>

#define SPIN_NS 5000000u
#define YIELD_NS 20000000u
#define SLEEP_NS 200000u
#define LOOK_NS 1000000u

uint64_t node_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int node_unlock(struct node *n) {
  if (n->state) return 0;
  n->state = n->host->leave();
  return 1;
}

void node_lock(struct node *n) {
  if (n->state) n->host->back(n->state);
  n->state = NULL;
}

int node_fail(struct node *n, int why, int rank) {
  if (why == WHY_SAID || n->is_late) return -1;
  int was = n->state != NULL;
  node_lock(n);
  n->host->look(n, why, rank);
  if (was) node_unlock(n);
  return -1;
}

/* A rank has come to our call of this number with another one's signature. */
int node_mismatch(struct node *n, int rank, uint64_t number, uint64_t theirs) {
  n->awaited = n->told = number;
  n->theirs = theirs;
  return node_fail(n, WHY_MISMATCH, rank);
}

static int look(struct node *n, int rank) {
  node_lock(n);
  int ends = (n->place && node_compare_earlier(n)) || n->host->look(n, WHY_WAITS, rank);
  node_unlock(n);
  return ends;
}

static void rest(const struct node *n, uint64_t waited) {
  if (n->spins && waited < SPIN_NS) {
    for (int i = 0; i < 16; i++) node_relax();
    return;
  }
  if (waited < YIELD_NS) {
    sched_yield();
    return;
  }
  uint64_t ns = waited / 50 < SLEEP_NS ? waited / 50 : SLEEP_NS;
  if (waited / 500 > ns) ns = waited / 500 < LOOK_NS ? waited / 500 : LOOK_NS;
  nanosleep(&(struct timespec){0, (long)ns}, NULL);
}

int node_wait_slowly(struct node *n, const node_word *at, int how, uint64_t want, int rank) {
  struct node_rank *mine = n->place ? node_mine(n) : NULL;
  if (n->patience == TRIES) return n->is_late = 1, n->late_for = rank, -WHY_LATE;
  uint64_t begin = node_now(), looked = begin;
  int holds, unlocked = node_unlock(n);
  if (mine) {
    node_note(&mine->status.rank, (uint64_t)rank);
    node_note(&mine->status.since, begin);
    node_post(&mine->status.waiting, n->calls);
  }
  while (!(holds = node_holds(how, node_load(at), want))) {
    uint64_t now = node_now();
    const double most = n->limit > 0 ? n->limit : n->patience ? 0 : n->timeout;
    if (most > 0 && (double)(now - begin) > most * 1e9) { /* look again: this process may have stood still since */
      holds = node_holds(how, node_load(at), want);
      if (!holds) holds = -WHY_LATE;
      n->is_late = n->patience && holds < 0, n->late_for = rank;
      break;
    }
    if (now - looked > LOOK_NS) {
      looked = now;
      if (look(n, rank)) {
        holds = -WHY_SAID;
        break;
      }
    }
    rest(n, now - begin);
  }
  if (mine) node_note(&mine->status.waiting, 0);
  if (unlocked) node_lock(n);
  return holds > 0 ? 0 : holds;
}
