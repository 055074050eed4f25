/* share.c: blocks of memory of which only their giver knows how many there are, and how long.

   What a rank gives another one is a parcel: a table of its blocks, and the short ones themselves. Parcels lie in the
   cell if there is room, else in the giver's memory; so do blocks that are too long for it. Those who take them read
   them there (direct.c), so the giver waits until they have finished.

     cell     part of each parcel | the first one, the second one ...     one for all ranks, or one for each
     parcel   number of blocks | part of each | what is here of them      part: at, nbytes; at 0: it is here */
#include "node.h"

#include <stdlib.h>

#define SHORT 1024 /* bytes of a block that is laid here although not all have room */

static int parcels_of(const struct node *n, const struct call *c) {
  return verb_cuts(c->verb) ? n->size : 1;
}

static size_t length_of(const struct node_part *blocks, size_t count, size_t most) {
  size_t nbytes = sizeof(uint64_t) + count * sizeof *blocks;
  for (size_t i = 0; i < count; i++) nbytes += blocks[i].nbytes <= most ? blocks[i].nbytes : 0;
  return nbytes;
}

static void lay_parcel(char *to, const struct node_part *blocks, size_t count, size_t most) {
  const uint64_t number = count;
  char *table = to + sizeof number, *at = table + count * sizeof *blocks;
  memcpy(to, &number, sizeof number);
  for (size_t i = 0; i < count; i++) {
    struct node_part part = blocks[i];
    if (part.nbytes <= most) {
      if (part.nbytes) memcpy(at, (const void *)(uintptr_t)part.at, part.nbytes);
      at += part.nbytes;
      part.at = 0;
    }
    memcpy(table + i * sizeof part, &part, sizeof part);
  }
}

/* Into our cell; what has no room there stays in our memory: s->is_read. */
static int lay(struct share *s, const struct node_part *blocks, const size_t *counts) {
  const int parcels = parcels_of(s->n, s->c);
  const size_t table = (size_t)parcels * sizeof *blocks;
  char *cell = (char *)node_cell(s->n, s->n->rank, s->n->calls)->data, *to = cell + table;
  size_t most = SIZE_MAX, total, first;
  for (;; most = SHORT) {
    total = first = 0;
    for (int i = 0; i < parcels; first += counts[i++]) total += length_of(blocks + first, counts[i], most);
    if (table + total <= NODE_INLINE || most == SHORT) break;
  }
  if (table + total > NODE_INLINE && !(to = s->memory = malloc(total))) return -1;
  s->is_read = most == SHORT;
  first = 0;
  for (int i = 0; i < parcels; first += counts[i++]) {
    struct node_part part = {s->memory ? (uintptr_t)to : 0, length_of(blocks + first, counts[i], most)};
    lay_parcel(to, blocks + first, counts[i], most);
    memcpy(cell + (size_t)i * sizeof part, &part, sizeof part);
    to += part.nbytes;
  }
  return 0;
}

static int give_up(struct share *s) {
  long_give_up(s->n);
  free(s->memory); /* now that whoever reads it will know */
  return -1;
}

/* Come to the call with what this rank gives: counts[i] of the blocks are those of parcel i. */
int share_begin(struct share *s, const struct node_part *blocks, const size_t *counts) {
  struct node *n = s->n;
  if (!n->direct) return NODE_NO_ROOM;
  if (node_enter(n, s->c->signature)) return -1;
  const int afresh = long_afresh(n);
  int bad = call_gives(n, s->c) && lay(s, blocks, counts);
  if (!bad) bad = afresh ? call_meet(n, s->c) : (node_arrive(n), node_await_all(n));
  if (bad) return give_up(s);
  if (!afresh) long_begin_steps(n);
  n->awaited = 0;
  return 0;
}

int share_pull(struct share *s, int rank, const struct node_part *part, char *to) {
  int unlocked = part->nbytes > NODE_CELL && node_unlock(s->n);
  s->reads = 1;
  int bad = direct_pull(s->n, rank, to, part->at, part->nbytes);
  if (unlocked) node_lock(s->n);
  return bad;
}

/* What a rank gives this one. */
int share_open(struct share *s, int rank, struct parcel *p) {
  const int parcels = parcels_of(s->n, s->c), which = parcels > 1 ? s->n->rank : 0;
  const char *cell = (const char *)node_cell(s->n, rank, s->n->calls)->data;
  struct node_part part = {0, (size_t)parcels * sizeof part};
  size_t at = 0;
  for (int i = -1; i < which; i++) { /* behind the table, and the parcels before this one */
    at += part.at ? 0 : part.nbytes;
    memcpy(&part, cell + (size_t)(i + 1) * sizeof part, sizeof part);
  }
  p->fetched = NULL;
  p->at = cell + at;
  if (part.at) {
    p->at = p->fetched = malloc(part.nbytes);
    if (!p->at || share_pull(s, rank, &part, p->fetched)) return -1;
  }
  uint64_t count = 0;
  const int is_whole = part.nbytes >= sizeof count && (part.at || (part.nbytes <= NODE_INLINE && at <= NODE_INLINE - part.nbytes));
  if (is_whole) memcpy(&count, p->at, sizeof count);
  if (!is_whole || count > (part.nbytes - sizeof count) / sizeof part) /* another call's, where none compares */
    return node_mismatch(s->n, rank, s->n->calls, node_signature(s->n, rank, s->n->calls));
  p->count = count;
  p->table = p->at + sizeof count;
  p->at = p->table + count * sizeof part;
  p->end = p->table - sizeof count + part.nbytes;
  return 0;
}

/* The next block of a parcel: where it is, or NULL: in the giver's memory, see share_pull. */
const char *share_next(struct parcel *p, struct node_part *part) {
  memcpy(part, p->table, sizeof *part);
  p->table += sizeof *part;
  if (part->at) return NULL;
  const char *here = p->at;
  if (part->nbytes > (size_t)(p->end - here)) part->nbytes = (size_t)(p->end - here);
  p->at += part->nbytes;
  return here;
}

/* Say that this rank has what it takes, and wait for those who read what it gives. bad: nothing more comes of it. What
   was read of a rank that has given up meanwhile may have been anything. */
int share_end(struct share *s, int bad) {
  struct node *n = s->n;
  for (int r = 0; !bad && s->reads && r < n->size; r++)
    bad = r != n->rank && call_goes(s->c, r, n->rank) && long_reached(n, &n->place->rank[r].put, 0, r);
  if (!bad) node_post(&node_mine(n)->finished, NODE_STEP(n->calls, 1));
  n->awaited = n->calls;
  for (int r = 0; !bad && s->is_read && r < n->size; r++)
    bad = r != n->rank && call_goes(s->c, n->rank, r) && node_await(n, r);
  n->awaited = 0;
  for (int r = 0; !bad && s->is_read && r < n->size; r++)
    bad = r != n->rank && call_goes(s->c, n->rank, r) && long_reached(n, &n->place->rank[r].finished, 1, r);
  if (bad) return give_up(s);
  free(s->memory);
  return 0;
}
