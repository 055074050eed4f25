/* direct.c: long calls that move data between the ranks' arrays where they are (process_vm_readv, process_vm_writev).

   One copy in place of two, but the system walks over the pages of both ends; pays for long arrays, where it is
   allowed (not in containers that forbid it, nor where a security module does): direct_reaches_process tries.

     verb                     who moves what
     all_gather, all_to_all   each rank reads the others' blocks
     broadcast, scatter       takers read; the root writes a part of each block, so that nobody only waits
     gather                   givers write; the root reads a part of each block
     exscan on 2 ranks        as a broadcast of rank 0's x
     reduce_scatter           each rank reads its block of all, and reduces
     reduce, all_reduce       a rank has a slice of the arrays: it reads that of all, reduces, and writes what the
                              others get of it. So x may be out: nobody else needs that slice of any x

   The arrays' addresses came with the arrivals. Nobody leaves before all have finished; a rank that gives up says so
   before it returns, and who has read from it since fails too, before those who got something of it could pass. Others
   may still write to its out then, until they come to the next call: it keeps that memory (module.c).

   Some memory is read by its process but by no other (what a device's driver has mapped): then all go through pieces.
   So each rank tries its own. */
#include "node.h"

#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#define SCRATCH (512u << 10) /* bytes that are read at a time, from all ranks together: half of a second cache */
#define CALL (20u << 10)     /* a call of the system takes as long as the copy of so many bytes */
#define PAGE ((size_t)4096)

static int copy(struct node *n, int rank, int writes, char *ours, uint64_t theirs, size_t nbytes) {
  const struct node_rank *other = &n->place->rank[rank];
  const int pid = (int)node_peek(&other->status.pid);
  while (nbytes) {
    struct iovec here = {ours, nbytes}, there = {(void *)(uintptr_t)theirs, nbytes};
    if (writes && long_wait_for_step(n, &other->put, 0, rank)) return -1; /* it has given up */
    ssize_t did = writes ? process_vm_writev(pid, &here, 1, &there, 1, 0) : process_vm_readv(pid, &here, 1, &there, 1, 0);
    if (did <= 0) return node_fail(n, WHY_GAVE_UP, rank);
    ours += did;
    theirs += (uint64_t)did;
    nbytes -= (size_t)did;
  }
  return 0;
}

int direct_pull(struct node *n, int rank, char *to, uint64_t from, size_t nbytes) {
  return copy(n, rank, 0, to, from, nbytes);
}

/* The same of a process that may end at any time; 0: all of it was read. */
int direct_read(int pid, char *to, uint64_t from, size_t nbytes) {
  while (nbytes) {
    struct iovec here = {to, nbytes}, there = {(void *)(uintptr_t)from, nbytes};
    const ssize_t did = process_vm_readv(pid, &here, 1, &there, 1, 0);
    if (did <= 0) return -1;
    to += did;
    from += (uint64_t)did;
    nbytes -= (size_t)did;
  }
  return 0;
}

/* Whether we can reach the memory of a process: `token` stands there, which shows that it is that one (pids differ between
   namespaces). Who may read may write, if the system writes at all, which is tried on ourselves. */
int direct_reaches_process(int pid, uint64_t at, uint64_t token) {
  uint64_t seen = 0, copied = 0;
  struct iovec ours = {&seen, sizeof seen}, to = {&copied, sizeof copied}, theirs = {(void *)(uintptr_t)at, sizeof seen};
  if (process_vm_writev(getpid(), &ours, 1, &to, 1, 0) != sizeof seen) return 0;
  return process_vm_readv(pid, &ours, 1, &theirs, 1, 0) == sizeof seen && seen == token;
}

/* Whether the system reads this memory of ours for others: its first byte and its last. */
int direct_is_reached(const char *at, size_t nbytes) {
  if (!at || !nbytes) return 1;
  char seen[2];
  struct iovec here = {seen, 2}, there[2] = {{(void *)(uintptr_t)at, 1}, {(void *)(uintptr_t)(at + nbytes - 1), 1}};
  return process_vm_readv(getpid(), &here, 1, there, 2, 0) == 2;
}

static int is_written(int verb) { /* others write to a rank's out */
  return verb != BY_ALL_GATHER && verb != BY_ALL_TO_ALL && verb != BY_REDUCE_SCATTER;
}

/* Whether this call may be direct as far as this rank is concerned. */
int direct_may(struct node *n, const struct call *c) {
  if (!n->scratch) n->scratch = malloc(SCRATCH);
  return n->scratch && direct_is_reached(c->x, c->nbytes) && (!is_written(c->verb) || direct_is_reached(c->out, c->nbytes));
}

uint64_t direct_address(const struct node *n, int rank, int which) {
  uint64_t addresses[CALL_WORDS];
  memcpy(addresses, node_cell(n, rank, n->calls)->data, sizeof addresses);
  return addresses[which];
}

static int pull(struct node *n, int rank, char *to, size_t at, size_t nbytes) {
  return copy(n, rank, 0, to, direct_address(n, rank, CALL_X) + at, nbytes);
}
static int push(struct node *n, int rank, const char *from, size_t at, size_t nbytes) {
  return copy(n, rank, 1, (char *)(uintptr_t)from, direct_address(n, rank, CALL_OUT) + at, nbytes);
}
static void keep(char *to, const char *from, size_t nbytes) {
  if (to != from) memcpy(to, from, nbytes);
}

/* -- blocks ------------------------------------------------------------------------------------------------------ */
static int gather(struct node *n, const struct call *c) { /* all_gather, all_to_all */
  const int ranks = n->size, me = n->rank;
  const size_t block = call_block(c, ranks), from = call_from(c, ranks, me);
  int bad = 0;
  keep(c->out + call_into(c, ranks, me), c->x + from, block);
  for (int i = 1; i < ranks && !bad; i++) {
    const int r = (me + i) % ranks;
    bad = pull(n, r, c->out + call_into(c, ranks, r), from, block);
  }
  return bad;
}

/* Between the root and each other rank: the root moves the last `few` bytes of a block, the others all else. The root
   has p - 1 blocks to do with, and its own to copy unless a broadcast is in place, which takes half as long as another's: few
   is such that it takes as long as the others. */
static int rooted(struct node *n, const struct call *c) { /* broadcast, scatter, gather, exscan */
  const size_t block = c->nbytes, ranks = (size_t)n->size, calls = (ranks - 2) * CALL;
  const int in_place = direct_address(n, c->root, CALL_X) == direct_address(n, c->root, CALL_OUT);
  const size_t share = c->verb == BY_BROADCAST && in_place ? block : block / 2;
  const size_t few = share > calls ? (share - calls) / ranks & ~(PAGE - 1) : 0, most = block - few;
  const int me = n->rank, is_gather = c->verb == BY_GATHER;
  const size_t from = call_from(c, n->size, me), into = call_into(c, n->size, me);
  int bad = 0;
  if (me != c->root) return is_gather ? push(n, c->root, c->x, into, most) : pull(n, c->root, c->out, from, most);
  for (int i = 1; few && i < n->size && !bad; i++) {
    const int r = (me + i) % n->size;
    bad = is_gather ? pull(n, r, c->out + call_into(c, n->size, r) + most, most, few)
                    : push(n, r, c->x + call_from(c, n->size, r) + most, most, few);
  }
  if (c->verb != BY_EXSCAN) keep(c->out + into, c->x + from, block);
  return bad;
}

/* -- slices ------------------------------------------------------------------------------------------------------ */

/* Reduce the bytes [at, at + nbytes) of all x, for those who get them. */
static int reduce(struct node *n, const struct call *c, size_t at, size_t nbytes) {
  const int me = n->rank, verb = c->verb, here = call_has_out(c, me);
  const size_t most = SCRATCH / (size_t)(n->size + 1) & ~(size_t)(NODE_LINE - 1);
  const size_t from = call_from(c, n->size, me);
  const void *in[NODE_RANKS];
  int bad = 0;
  for (size_t length, end = at + nbytes; at < end && !bad; at += length) {
    char *room = n->scratch + (size_t)n->size * most, *to = here ? c->out + at : room;
    length = end - at < most ? end - at : most;
    for (int r = 0; r < n->size && !bad; r++) {
      char *copied = n->scratch + (size_t)r * most;
      in[r] = r == me ? c->x + from + at : copied;
      if (r != me) bad = pull(n, r, copied, from + at, length);
    }
    if (!bad) {
      reduce_arrays(c->dtype, c->op, n->size, to, in, n->size, length / dtype_bytes(c->dtype));
      if (!here) bad = push(n, c->root, to, at, length);
      for (int i = 1; verb == BY_ALL_REDUCE && i < n->size && !bad; i++)
        bad = push(n, (me + i) % n->size, to, at, length);
    }
  }
  return bad;
}

/* Our slice. The root of a reduce has the last one, longer by what the others do for writing to it. */
static int slice(struct node *n, const struct call *c) {
  const size_t ranks = (size_t)n->size, others = ranks - 1, to_root = c->nbytes * others;
  const size_t reducing = (to_root > CALL ? to_root - CALL : 0) / (others * others + ranks) & ~(PAGE - 1);
  const size_t length = c->verb == BY_REDUCE ? reducing : (c->nbytes / ranks + PAGE - 1) & ~(PAGE - 1);
  const int last = c->verb == BY_REDUCE ? c->root : n->size - 1, index = (n->rank - last - 1 + n->size) % n->size;
  const size_t at = (size_t)index * length, rest = at < c->nbytes ? c->nbytes - at : 0;
  return reduce(n, c, at, n->rank == last || rest < length ? rest : length);
}

static int move(struct node *n, const struct call *c) {
  switch (c->verb) {
    case BY_ALL_GATHER:
    case BY_ALL_TO_ALL: return gather(n, c);
    case BY_BROADCAST:
    case BY_SCATTER:
    case BY_EXSCAN:
    case BY_GATHER: return rooted(n, c);
    case BY_REDUCE_SCATTER: return reduce(n, c, 0, call_block(c, n->size));
    default: return slice(n, c);
  }
}

/* Whether rank r or this one reads or writes the other's memory: between the root and each other one, or all. */
static int touches(const struct node *n, const struct call *c, int r) {
  return r != n->rank && (verb_is(c->verb, REDUCTIONS) || call_goes(c, r, n->rank) || call_goes(c, n->rank, r));
}

/* Our part of the work, at one go; then we have finished. */
int direct_move(struct node *n, const struct call *c) {
  const int fills = c->verb == BY_EXSCAN && n->rank == 0, in_place = c->x == c->out;
  if (move(n, c)) return -1;
  /* What was read of a rank that has given up meanwhile may have been anything, and others may have got it from here: so
     before we say that we have finished. */
  atomic_thread_fence(memory_order_seq_cst); /* first their arrays were read, then whether they had given up */
  for (int r = 0; r < n->size; r++)
    if (touches(n, c, r) && long_wait_for_step(n, &n->place->rank[r].put, 0, r)) return -1;
  node_post(&node_mine(n)->finished, NODE_STEP(n->calls, 1));
  if (fills && !in_place) reduce_neutral(c->dtype, c->op, c->out, c->count);
  return 0;
}

int direct_finish(struct node *n, const struct call *c) {
  for (int r = 0; r < n->size; r++)
    if (touches(n, c, r) && long_wait_for_step(n, &n->place->rank[r].finished, 1, r)) return -1;
  if (c->verb == BY_EXSCAN && n->rank == 0 && c->x == c->out) reduce_neutral(c->dtype, c->op, c->out, c->count);
  return 0;
}
