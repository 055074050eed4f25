/* collective.c: what each verb brings, and for whom it waits. Small calls, whose data travel in the cells.

   verb             lays in its cell      waits for           then
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

int call_gives(const struct node *n, const struct call *c) {
  int gives = 0;
  for (int r = 0; r < n->size && !gives; r++) gives = r != n->rank && call_goes(c, n->rank, r);
  return gives;
}

static int waits_for(const struct node *n, const struct call *c, int rank) {
  return n->synchronous || call_goes(c, rank, n->rank);
}

static void copy(char *to, const void *from, size_t nbytes) {
  if (nbytes == 8)
    memcpy(to, from, 8);
  else if (nbytes)
    memcpy(to, from, nbytes);
}

void call_take(struct node *n, const struct call *c) {
  const size_t block = call_block(c, n->size), offset = call_from(c, n->size, n->rank);
  const int reduces = verb_is(c->verb, REDUCTIONS);
  const void *in[NODE_RANKS];
  _Alignas(64) char room[NODE_INLINE];
  char *made = c->out_lies ? room : c->out;
  int inputs = 0;
  for (int r = 0; r < n->size; r++) {
    if (!call_goes(c, r, n->rank)) continue;
    const int is_mine = r == n->rank;
    const char *from = (is_mine && !c->x_lies ? c->x : (const char *)node_cell(n, r, n->calls)->data) + offset;
    if (reduces)
      in[inputs++] = from;
    else if (is_mine)
      call_copy(c, call_into(c, n->size, r), offset, block);
    else if (c->out_lies)
      call_write(c, call_into(c, n->size, r), from, block);
    else
      copy(c->out + call_into(c, n->size, r), from, block);
  }
  if (inputs)
    reduce_arrays(c->dtype, c->op, n->size, made, in, inputs, block / dtype_bytes(c->dtype));
  else if (c->verb == BY_EXSCAN)
    reduce_neutral(c->dtype, c->op, made, c->count);
  if (reduces && made == room) call_write(c, 0, room, block);
}

static size_t laid_bytes(const struct node *n, const struct call *c) {
  return c->verb == BY_SCATTER ? c->nbytes * (size_t)n->size : c->nbytes;
}

int call_is_long(const struct node *n, const struct call *c) { return laid_bytes(n, c) > NODE_INLINE; }

void call_lay(struct node *n, const struct call *c) { /* also for itself, of what does not lie in order */
  char *data = (char *)node_cell(n, n->rank, n->calls)->data;
  if (c->x_lies)
    call_read(c, data, 0, laid_bytes(n, c));
  else if (call_gives(n, c))
    copy(data, c->x, laid_bytes(n, c));
}

int call_wait(struct node *n, const struct call *c) {
  int all = 1;
  for (int r = 0; r < n->size; r++) all &= r == n->rank || waits_for(n, c, r);
  if (all) return node_wait_for_all(n);
  for (int r = 0; r < n->size; r++)
    if (r != n->rank && waits_for(n, c, r) && node_wait_for_rank(n, r)) return -1;
  return node_compare(n);
}

int call_arrive_and_wait(struct node *n, const struct call *c) {
  node_arrive(n);
  return call_wait(n, c);
}

static int small_run(struct node *n, const struct call *c) {
  if (node_enter(n, c->signature)) return -1;
  call_lay(n, c);
  if (call_arrive_and_wait(n, c)) return -1;
  call_take(n, c);
  return 0;
}

/* bits 0-5 verb, 6-10 operator, 11-18 element type, 19-30 root, 32-62 number of elements: see signature.py */
void call_sign(struct call *c) {
  uint64_t root = verb_is(c->verb, ROOTED) ? (uint64_t)c->root : 0;
  const uint64_t many = 1u << 30, dtype = (uint64_t)(c->named ? c->named : c->dtype);
  uint64_t count = c->named ? c->compared : c->count;
  if (count >> 31) count = ((count ^ count >> 30) & (many - 1)) | many;
  c->signature = (uint64_t)c->verb | (uint64_t)c->op << 6 | dtype << 11 | root << 19 | count << 32;
}

int node_run(struct node *n, struct call *c) {
  call_sign(c);
  if (n->size > 1) return call_is_long(n, c) ? long_run(n, c) : small_run(n, c);
  call_take(n, c);
  return 0;
}
