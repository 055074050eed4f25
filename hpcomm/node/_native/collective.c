/* collective.c: what each verb brings, and for whom it waits. Small calls, whose data travel in the cells.

   verb             lays in its cell      waits for           then
   barrier          nothing               all                 -
   broadcast        the root: x           the root            copies
   gather, reduce   all but the root: x   (the root) all      copies, reduces
   scatter          the root: all blocks  the root            copies its own block
   all_gather       x                     all                 copies
   all_to_all       all blocks            all                 copies its own block of each
   all_reduce       x                     all                 reduces: every rank all of it
   reduce_scatter   all blocks            all                 reduces its own block
   scan, exscan     x                     the ranks below     reduces

   Reductions go in the order of ranks. A rank's own x is read where it is, so out may be x. */
#include "node.h"

static int is_rooted(int verb) {
  return verb == BY_BROADCAST || verb == BY_GATHER || verb == BY_REDUCE || verb == BY_SCATTER;
}

int call_gives(const struct node *n, const struct call *c, int rank) {
  switch (c->verb) {
    case BY_BROADCAST:
    case BY_SCATTER: return rank == c->root;
    case BY_GATHER:
    case BY_REDUCE: return rank != c->root;
    case BY_SCAN:
    case BY_EXSCAN: return rank + 1 < n->size;
    default: return c->verb != BY_BARRIER;
  }
}

int call_takes(const struct node *n, const struct call *c, int rank) {
  (void)n;
  switch (c->verb) {
    case BY_BROADCAST:
    case BY_SCATTER: return rank != c->root;
    case BY_GATHER:
    case BY_REDUCE: return rank == c->root;
    case BY_SCAN:
    case BY_EXSCAN: return rank > 0;
    default: return c->verb != BY_BARRIER;
  }
}

static int waits_for(const struct node *n, const struct call *c, int rank) {
  if (n->synchronous || c->verb == BY_BARRIER) return 1;
  if ((c->verb == BY_SCAN || c->verb == BY_EXSCAN) && rank > n->rank) return 0;
  return call_takes(n, c, n->rank) && call_gives(n, c, rank);
}

/* Reduce blocks of this many bytes that begin at byte `at` of what the ranks from 0 up to `end` brought. */
static void fold_cells(struct node *n, const struct call *c, int end, size_t at, size_t nbytes) {
  const void *in[NODE_RANKS];
  for (int r = 0; r < end; r++)
    in[r] = (r == n->rank ? (const unsigned char *)c->x : node_cell(n, r, n->calls)->data) + at;
  reduce_arrays(c->dtype, c->op, n->size, c->out, in, end, nbytes / dtype_bytes(c->dtype));
}

static void copy(char *to, const void *from, size_t nbytes) {
  if (nbytes == 8)
    memcpy(to, from, 8);
  else if (to != from)
    memmove(to, from, nbytes);
}

static void take(struct node *n, const struct call *c) {
  const size_t nbytes = c->nbytes, block = nbytes / (size_t)n->size;
  const int me = n->rank;
  switch (c->verb) {
    case BY_BROADCAST:
      copy(c->out, me == c->root ? (const void *)c->x : node_cell(n, c->root, n->calls)->data, nbytes);
      break;
    case BY_SCATTER: {
      const char *from = me == c->root ? c->x : (const char *)node_cell(n, c->root, n->calls)->data;
      copy(c->out, from + (size_t)me * nbytes, nbytes);
      break;
    }
    case BY_GATHER:
    case BY_ALL_GATHER:
      if (!call_takes(n, c, me)) break;
      for (int r = 0; r < n->size; r++)
        copy(c->out + (size_t)r * nbytes, r == me ? (const void *)c->x : node_cell(n, r, n->calls)->data, nbytes);
      break;
    case BY_ALL_TO_ALL:
      for (int r = 0; r < n->size; r++)
        copy(c->out + (size_t)r * block,
             (r == me ? c->x : (const char *)node_cell(n, r, n->calls)->data) + (size_t)me * block, block);
      break;
    case BY_REDUCE:
    case BY_ALL_REDUCE:
      if (call_takes(n, c, me)) fold_cells(n, c, n->size, 0, nbytes);
      break;
    case BY_REDUCE_SCATTER: fold_cells(n, c, n->size, (size_t)me * block, block); break;
    case BY_SCAN: fold_cells(n, c, me + 1, 0, nbytes); break;
    case BY_EXSCAN:
      if (me > 0)
        fold_cells(n, c, me, 0, nbytes);
      else
        reduce_neutral(c->dtype, c->op, c->out, c->count);
      break;
    default: break;
  }
}

static size_t laid_bytes(const struct node *n, const struct call *c) {
  return c->verb == BY_SCATTER ? c->nbytes * (size_t)n->size : c->nbytes;
}

int call_meet(struct node *n, const struct call *c) {
  node_arrive(n);
  int all = 1;
  for (int r = 0; r < n->size; r++) all &= r == n->rank || waits_for(n, c, r);
  if (all) return node_await_all(n);
  for (int r = 0; r < n->size; r++)
    if (r != n->rank && waits_for(n, c, r) && node_await(n, r)) return -1;
  return node_compare(n);
}

static int small_run(struct node *n, const struct call *c) {
  if (node_enter(n, c->signature)) return -1;
  if (call_gives(n, c, n->rank)) copy((char *)node_cell(n, n->rank, n->calls)->data, c->x, laid_bytes(n, c));
  if (call_meet(n, c)) return -1;
  take(n, c);
  return 0;
}

/* bits 0-5 verb, 6-10 operator, 11-18 element type, 19-30 root, 32-62 number of elements: see signature.py */
static uint64_t signature(const struct call *c) {
  uint64_t root = is_rooted(c->verb) ? (uint64_t)c->root : 0;
  return (uint64_t)c->verb | (uint64_t)c->op << 6 | (uint64_t)c->dtype << 11 | root << 19 |
         (c->count & 0x7fffffff) << 32;
}

int node_run(struct node *n, struct call *c) {
  c->signature = signature(c);
  if (n->size > 1) return laid_bytes(n, c) <= NODE_INLINE ? small_run(n, c) : long_run(n, c);
  take(n, c);
  return 0;
}
