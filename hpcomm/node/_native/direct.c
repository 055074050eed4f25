/* direct.c: long calls that read the other ranks' arrays where they are (process_vm_readv).

   One copy in place of two, but the system walks over the pages of both ends; pays for long arrays, where it is
   allowed (not in containers that forbid it, nor where a security module does): direct_probe tries.

   The arrays' addresses came with the arrivals. Nobody leaves before all have read what they need; a rank that gives
   up says so before it returns, since its array may be gone from then on, and who has read from it since fails too.
   Nobody writes to another rank's memory, for that reason: what was an array there may be something else by then. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "node.h"

#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#define CHAIN (32u << 10) /* bytes of a part of a scan */
#define SCRATCH (512u << 10) /* bytes that are read at a time, from all ranks together: half of a second cache */

int direct_pull(struct node *n, int rank, char *to, uint64_t from, size_t nbytes) {
  const int pid = (int)node_peek(&n->place->rank[rank].status.pid);
  while (nbytes) {
    struct iovec ours = {to, nbytes}, theirs = {(void *)(uintptr_t)from, nbytes};
    ssize_t got = process_vm_readv(pid, &ours, 1, &theirs, 1, 0);
    if (got <= 0) return node_fail(n, NODE_LEFT_CALL, rank);
    to += got;
    from += (uint64_t)got;
    nbytes -= (size_t)got;
  }
  return 0;
}

/* Whether we can read all others' memory: their tokens show that it is theirs (pids differ between namespaces). */
int direct_probe(struct node *n) {
  for (int r = 0; r < n->size; r++) {
    struct node_rank *rank = &n->place->rank[r];
    uint64_t seen = 0, at = node_peek(&rank->status.token_at);
    struct iovec ours = {&seen, sizeof seen}, theirs = {(void *)(uintptr_t)at, sizeof seen};
    if (r == n->rank) continue;
    if (process_vm_readv((int)node_peek(&rank->status.pid), &ours, 1, &theirs, 1, 0) != sizeof seen) return 0;
    if (seen != node_peek(&rank->status.token)) return 0;
  }
  if (!n->scratch) n->scratch = malloc(SCRATCH);
  return n->scratch != NULL;
}

/* Whether the system reads this memory of ours for others: its first byte and its last. */
int direct_reaches(const char *at, size_t nbytes) {
  char seen[2];
  struct iovec here = {seen, 2}, there[2] = {{(void *)(uintptr_t)at, 1}, {(void *)(uintptr_t)(at + nbytes - 1), 1}};
  return !at || process_vm_readv(getpid(), &here, 1, there, 2, 0) == 2;
}

/* Where the x (0) or out (1) of a rank's call is; 2: whether others cannot read that. */
uint64_t direct_address(const struct node *n, int rank, int which) {
  uint64_t addresses[3];
  memcpy(addresses, node_cell(n, rank, n->calls)->data, sizeof addresses);
  return addresses[which];
}

/* Reduce the bytes [at, at + nbytes) of x of the first `inputs` ranks. */
static int reduce(struct node *n, const struct call *c, int inputs, size_t at, size_t nbytes, char *out) {
  if (inputs == 1 && n->rank && c->op < OP_LAND) return direct_pull(n, 0, out, direct_address(n, 0, 0) + at, nbytes);
  const size_t most = SCRATCH / (size_t)(n->size - 1) & ~(size_t)(NODE_LINE - 1);
  const void *in[NODE_RANKS];
  for (size_t done = 0; done < nbytes; done += most) {
    size_t length = nbytes - done < most ? nbytes - done : most;
    for (int r = 0; r < inputs; r++) {
      char *to = n->scratch + (size_t)(r - (r > n->rank)) * most;
      in[r] = r == n->rank ? c->x + at + done : to;
      if (r != n->rank && direct_pull(n, r, to, direct_address(n, r, 0) + at + done, length)) return -1;
    }
    reduce_arrays(c->dtype, c->op, n->size, out + done, in, inputs, length / dtype_bytes(c->dtype));
  }
  return 0;
}

static int all_reduce(struct node *n, const struct call *c) {
  const size_t ranks = (size_t)n->size, even = (c->nbytes + ranks - 1) / ranks;
  const size_t slice = (even + 4095) / 4096 * 4096, mine = slice * (size_t)n->rank;
  const size_t length = mine >= c->nbytes ? 0 : c->nbytes - mine < slice ? c->nbytes - mine : slice;
  if (length && reduce(n, c, n->size, mine, length, c->out + mine)) return -1;
  node_post(&node_mine(n)->taken, NODE_STEP(n->calls, NODE_FIRST_STEP + 1));
  for (int i = 1; i < n->size; i++) {
    int r = (n->rank + i) % n->size;
    size_t at = slice * (size_t)r;
    if (at >= c->nbytes) continue;
    if (long_reached(n, &n->place->rank[r].taken, NODE_FIRST_STEP + 1, r)) return -1;
    if (direct_pull(n, r, c->out + at, direct_address(n, r, 1) + at, c->nbytes - at < slice ? c->nbytes - at : slice))
      return -1;
  }
  return 0;
}

static int gather(struct node *n, const struct call *c) { /* also all_gather, all_to_all */
  const int cut = c->verb == BY_ALL_TO_ALL;
  const size_t block = cut ? c->nbytes / (size_t)n->size : c->nbytes, from = cut ? (size_t)n->rank * block : 0;
  for (int i = 0; i < n->size; i++) {
    int r = (n->rank + i) % n->size;
    char *to = c->out + (size_t)r * block;
    if (r == n->rank) {
      if (to != c->x + from) memcpy(to, c->x + from, block);
    } else if (direct_pull(n, r, to, direct_address(n, r, 0) + from, block)) {
      return -1;
    }
  }
  return 0;
}

/* scan, exscan: a rank takes from the one below what that one has reduced, part by part, as soon as it is there:

     rank 0   f0 f1 f2 f3           f: reduce a part; the one above reads it once `taken` says so
     rank 1      f0 f1 f2 f3
     rank 2         f0 f1 f2 f3

   Halves would be rounded at each rank: they are reduced from all below at once. So are few ranks, which is quicker. */
static int chain(struct node *n, const struct call *c) {
  const int me = n->rank, below = me - 1, is_scan = c->verb == BY_SCAN, first = is_scan ? 0 : 1;
  uint64_t step = NODE_FIRST_STEP;
  for (size_t done = 0, length; done < c->nbytes; done += length) {
    char *reduced = n->scratch, *x_below = n->scratch + CHAIN;
    const void *in[] = {reduced, is_scan ? c->x + done : x_below};
    length = c->nbytes - done < CHAIN ? c->nbytes - done : CHAIN;
    step++;
    if (me == first && reduce(n, c, 1, done, length, c->out + done)) return -1;
    if (me > first) {
      if (long_reached(n, &n->place->rank[below].taken, step, below)) return -1;
      if (direct_pull(n, below, reduced, direct_address(n, below, 1) + done, length)) return -1;
      if (!is_scan && direct_pull(n, below, x_below, direct_address(n, below, 0) + done, length)) return -1;
      reduce_arrays(c->dtype, c->op, n->size, c->out + done, in, 2, length / dtype_bytes(c->dtype));
    }
    node_post(&node_mine(n)->taken, NODE_STEP(n->calls, step));
  }
  return 0;
}

static int prefix(struct node *n, const struct call *c) {
  const int inputs = c->verb == BY_SCAN ? n->rank + 1 : n->rank;
  if (n->size > 3 && c->dtype != F16 && c->dtype != BF16) return chain(n, c);
  return inputs ? reduce(n, c, inputs, 0, c->nbytes, c->out) : 0;
}

static int move(struct node *n, const struct call *c) {
  const size_t block = c->nbytes / (size_t)n->size;
  const int me = n->rank, is_root = me == c->root;
  switch (c->verb) {
    case BY_ALL_REDUCE: return all_reduce(n, c);
    case BY_REDUCE_SCATTER: return reduce(n, c, n->size, (size_t)me * block, block, c->out);
    /* In halves that cross once more took twice as long between far cores, and a tenth less between near ones. */
    case BY_REDUCE: return is_root ? reduce(n, c, n->size, 0, c->nbytes, c->out) : 0;
    case BY_SCAN:
    case BY_EXSCAN: return prefix(n, c);
    case BY_GATHER: return is_root ? gather(n, c) : 0;
    case BY_ALL_GATHER:
    case BY_ALL_TO_ALL: return gather(n, c);
    default: break;
  }
  const size_t from = c->verb == BY_SCATTER ? (size_t)me * c->nbytes : 0; /* broadcast, scatter */
  if (!is_root) return direct_pull(n, c->root, c->out, direct_address(n, c->root, 0) + from, c->nbytes);
  if (c->out != c->x + from) memcpy(c->out, c->x + from, c->nbytes);
  return 0;
}

int direct_run(struct node *n, const struct call *c) {
  if (move(n, c)) return -1;
  node_post(&node_mine(n)->finished, NODE_STEP(n->calls, NODE_FIRST_STEP + 1));
  for (int r = 0; r < n->size; r++)
    if (r != n->rank && long_reached(n, &n->place->rank[r].finished, NODE_FIRST_STEP + 1, r)) return -1;
  return 0;
}
