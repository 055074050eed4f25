/* share.c: blocks of memory of which only their giver knows how many there are, and how long.

   What a rank gives another one is a parcel: a table of its blocks, and the short ones themselves. Parcels lie in the
   cell if there is room, else in the giver's memory; so do blocks that are too long for it. Those who take them read
   them there (direct.c), so the giver waits until they have finished.

     cell     part of each parcel | the first one, the second one ...     one for all ranks, or one for each
     parcel   number of blocks | part of each | what is here of them      part: at, nbytes; at 0: it is here */
#include "node.h"

#include <stdlib.h>

#define SHORT 1024 /* bytes of a block that is laid here although not all have room */

struct share {
  struct node *n;
  const struct call *c;
  char *memory; /* parcels that have no room in the cell */
  int is_read;  /* there is something in our memory that others read, */
  int reads;    /* or this rank has read something in theirs */
};

static int parcels_of(const struct node *n, const struct call *c) {
  return verb_is(c->verb, INPUT_BLOCKS) ? n->size : 1;
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

static int pull(struct share *s, int rank, const struct node_part *part, char *to) {
  int unlocked = part->nbytes > NODE_CELL && node_unlock(s->n);
  s->reads = 1;
  int bad = direct_pull(s->n, rank, to, part->at, part->nbytes);
  if (unlocked) node_lock(s->n);
  return bad;
}

/* The blocks of a parcel, to where the program wants them. */
static int take_blocks(struct share *s, int rank, const char *parcel, const char *end, share_memory *memory, void *program) {
  uint64_t count;
  memcpy(&count, parcel, sizeof count);
  const char *table = parcel + sizeof count, *at;
  struct node_part part;
  if (count > (size_t)(end - table) / sizeof part) /* another call's, where none compares */
    return node_mismatch(s->n, rank, s->n->calls, node_signature(s->n, rank, s->n->calls));
  at = table + count * sizeof part;
  for (uint64_t i = 0; i < count; i++) {
    memcpy(&part, table + i * sizeof part, sizeof part);
    const int is_here = !part.at;
    if (is_here && part.nbytes > (size_t)(end - at)) part.nbytes = (size_t)(end - at);
    char *to = memory(program, rank, i, part.nbytes, is_here);
    if (!to || (!is_here && pull(s, rank, &part, to))) return -1;
    if (!is_here) continue;
    memcpy(to, at, part.nbytes);
    at += part.nbytes;
  }
  return 0;
}

/* What a rank gives this one. */
static int take(struct share *s, int rank, share_memory *memory, void *program) {
  const int parcels = parcels_of(s->n, s->c), which = parcels > 1 ? s->n->rank : 0;
  const char *cell = (const char *)node_cell(s->n, rank, s->n->calls)->data, *parcel;
  struct node_part part = {0, (size_t)parcels * sizeof part};
  size_t at = 0;
  for (int i = 0; i <= which; i++) { /* behind the table, and the parcels before this one */
    at += part.at ? 0 : part.nbytes;
    memcpy(&part, cell + (size_t)i * sizeof part, sizeof part);
  }
  if (part.nbytes < sizeof(uint64_t) || (!part.at && (part.nbytes > NODE_INLINE || at > NODE_INLINE - part.nbytes)))
    return node_mismatch(s->n, rank, s->n->calls, node_signature(s->n, rank, s->n->calls));
  char *fetched = part.at ? malloc(part.nbytes) : NULL;
  int bad = part.at && (!fetched || pull(s, rank, &part, fetched));
  parcel = part.at ? fetched : cell + at;
  if (!bad) bad = take_blocks(s, rank, parcel, parcel + part.nbytes, memory, program);
  free(fetched);
  return bad;
}

/* Say that this rank has what it takes, and wait for those who read what it gives. What was read of a rank that has given
   up meanwhile may have been anything. */
static int finish(struct share *s) {
  struct node *n = s->n;
  for (int r = 0; s->reads && r < n->size; r++)
    if (r != n->rank && call_goes(s->c, r, n->rank) && long_wait_for_step(n, &n->place->rank[r].put, 0, r)) return -1;
  node_post(&node_mine(n)->finished, NODE_STEP(n->calls, 1));
  n->awaited = n->calls;
  for (int r = 0; s->is_read && r < n->size; r++)
    if (r != n->rank && call_goes(s->c, n->rank, r) && node_wait_for_rank(n, r)) return -1;
  n->awaited = 0;
  for (int r = 0; s->is_read && r < n->size; r++)
    if (r != n->rank && call_goes(s->c, n->rank, r) && long_wait_for_step(n, &n->place->rank[r].finished, 1, r)) return -1;
  return 0;
}

static int arrive(struct share *s, const struct node_part *blocks, const size_t *counts) {
  struct node *n = s->n;
  const int afresh = long_afresh(n);
  if (call_gives(n, s->c) && lay(s, blocks, counts)) return -1;
  if (afresh) return call_arrive_and_wait(n, s->c);
  node_arrive(n);
  const int bad = node_wait_for_all(n);
  if (!bad) long_count_steps(n);
  return bad;
}

int share_run(struct node *n, const struct call *c, const struct node_part *blocks, const size_t *counts,
              share_memory *memory, void *program) {
  struct share s = {.n = n, .c = c};
  if (!n->direct) return NODE_NO_ROOM;
  if (node_enter(n, c->signature)) return -1;
  int bad = arrive(&s, blocks, counts);
  if (!bad) n->awaited = 0;
  for (int r = 0; !bad && r < n->size; r++)
    if (r != n->rank && call_goes(c, r, n->rank)) bad = take(&s, r, memory, program);
  if (!bad) bad = finish(&s);
  if (bad) long_give_up(n);
  free(s.memory); /* now that whoever reads it knows */
  return bad ? -1 : 0;
}
