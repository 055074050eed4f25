/* long.c: calls whose data go through the pieces, step by step.

   All ranks meet first (so all have left the last call: the pieces are free). Then each step moves a part of the
   arrays, in up to three stages that run one step behind another, so that caches hold what is handed over:

     give    copy a part of x into our piece            post put = step + 1
     reduce  of what all have put, what is ours         post taken = step + 1
     take    what others have put, or reduced           post taken, or finished = step + 1

   step:      0     1     2     3                 piece of step s: s % ring. It is written again when all who
   give       s0    s1    s2    s3                read it have taken step s; a result when they have finished.
   reduce           s0    s1    s2
   take                   s0    s1

   scan and exscan are a chain: rank q gives what rank q - 1 has given, reduced with its own x. Other verbs that reduce cut
   a step into a chunk for each rank: rank q reduces chunk q and the others take it from q's results. A result is reduced
   into the array and copied from there: a reduction that writes where another core has just read waits for one line after
   the other, a copy does not. A reduce of 2 ranks is done by its root alone, which so reads fewer bytes of the other.

   A rank that fails on the way posts STEP_GAVE_UP for all three, so that nobody waits for it. */
#include "node.h"

#define CHAIN_STEPS 8           /* of a chain, at least, */
#define CHAIN_LEAST (16u << 10) /* if they do not get shorter than this */

enum { MEETS, WAITS, MOVES, FINISHES, STEPS }; /* states of a long call */

static size_t at_least(size_t nbytes, size_t at, size_t most) {
  return at >= nbytes ? 0 : nbytes - at < most ? nbytes - at : most;
}
int long_wait_for_step(struct node *n, const node_word *at, uint64_t step, int rank) {
  return node_await(n, at, NODE_AT_STEP, NODE_STEP(n->calls, step), rank);
}
/* Wait until rank q has `put`, `taken` or `finished` so many steps; 0, or -1. */
#define WAIT_FOR(s, q, word, steps) long_wait_for_step((s)->n, &(s)->n->place->rank[q].word, steps, q)
static void post(const struct steps *s, node_word *at, uint64_t step) {
  node_post(at, NODE_STEP(s->n->calls, step));
}

/* Ranks between which something goes: q reads what r has put. */
static int reads(const struct steps *s, int q, int r) {
  return q != r && (s->is_shared || call_goes(s->c, r, q));
}

/* Bytes of a step of a chain: short ones, so that all ranks have work soon. */
static size_t links(const struct steps *s, size_t most) {
  const size_t even = s->c->nbytes / CHAIN_STEPS, least = even < CHAIN_LEAST ? CHAIN_LEAST : even;
  return least < most ? least : most;
}

static void plan(struct steps *s) {
  const int verb = s->c->verb, is_half = s->c->dtype == F16 || s->c->dtype == BF16;
  s->is_shared = verb == BY_ALL_REDUCE || (verb == BY_REDUCE && s->n->size > 2);
  size_t most = verb_is(verb, INPUT_BLOCKS) || s->is_shared ? node_chunk(s->n->size) : node_piece(s->n->size);
  if (verb_is(verb, PREFIXES)) /* halves are float32 there */
    most = links(s, is_half ? most / 2 & ~(size_t)(NODE_LINE - 1) : most);
  const size_t ranks = s->is_shared ? (size_t)s->n->size : 1;
  s->whole = call_block(s->c, s->n->size);
  s->count = (s->whole + most * ranks - 1) / (most * ranks);
  size_t even = (s->whole + s->count * ranks - 1) / (s->count * ranks);
  s->chunk = (even + NODE_LINE - 1) / NODE_LINE * NODE_LINE;
  s->part = s->chunk * ranks;
}

static int give(struct steps *s, uint64_t step) {
  struct node *n = s->n;
  const uint64_t ring = (uint64_t)node_ring(n->size);
  const int verb = s->c->verb, me = n->rank;
  const size_t at = step * s->part, length = at_least(s->whole, at, s->part);
  char *piece = node_piece_at(n, me, step);
  int readers = 0;
  for (int q = 0; q < n->size; q++)
    if (reads(s, q, me)) {
      if (step >= ring && WAIT_FOR(s, q, taken, step - ring + 1)) return -1;
      readers = 1;
    }
  if (!readers) return 0;
  if (verb_is(verb, INPUT_BLOCKS)) {
    for (int q = 0; q < n->size; q++)
      if (q != me) call_read(s->c, piece + (size_t)q * s->chunk, call_from(s->c, n->size, q) + at, length);
  } else if (s->is_shared) { /* all but what we reduce ourselves */
    size_t first = at_least(length, 0, (size_t)me * s->chunk), last = at_least(length, 0, (size_t)(me + 1) * s->chunk);
    call_read(s->c, piece, at, first);
    call_read(s->c, piece + last, at + last, length - last);
  } else {
    call_read(s->c, piece, at, length);
  }
  post(s, &node_mine(n)->put, step + 1);
  return 0;
}

static int reduce(struct steps *s, uint64_t step) {
  struct node *n = s->n;
  const struct call *c = s->c;
  const uint64_t ring = (uint64_t)node_ring(n->size);
  const int me = n->rank, verb = c->verb;
  const size_t at = step * s->part, mine = s->is_shared ? (size_t)me * s->chunk : 0;
  const size_t length = at_least(s->whole, at + mine, s->chunk);
  const size_t in_x = call_from(c, n->size, me) + mine + at;
  const size_t in_piece = verb_is(verb, INPUT_BLOCKS) || s->is_shared ? (size_t)me * s->chunk : 0;
  char *own = node_piece_at(n, me, step) + in_piece; /* where nobody else reads: room for what does not lie in order */
  const void *in[NODE_RANKS];
  if (c->x_lies) call_read(c, own, in_x, length);
  for (int q = 0; q < n->size; q++) {
    if (reads(s, me, q) && WAIT_FOR(s, q, put, step + 1)) return -1;
    in[q] = q == me && !c->x_lies ? c->x + in_x : node_piece_at(n, q, step) + in_piece;
  }
  for (int q = 0; s->is_shared && step >= ring && q < n->size; q++)
    if (q != me && call_has_out(c, q) && WAIT_FOR(s, q, finished, step - ring + 1)) return -1;
  char *result = s->is_shared ? node_result_at(n, me, step) : NULL;
  char *out = call_has_out(c, me) && !c->out_lies ? c->out + mine + at : result ? result : own;
  if (length) reduce_arrays(c->dtype, c->op, n->size, out, in, n->size, length / dtype_bytes(c->dtype));
  if (result && out != result && verb == BY_ALL_REDUCE) memcpy(result, out, length);
  if (call_has_out(c, me) && c->out_lies) call_write(c, mine + at, out, length);
  post(s, &node_mine(n)->taken, step + 1);
  return 0;
}

/* What reducing leaves to be taken: the chunks of the others. */
static int take_results(struct steps *s, uint64_t step) {
  struct node *n = s->n;
  const size_t at = step * s->part;
  for (int i = 1; i < n->size; i++) {
    int q = (n->rank + i) % n->size;
    size_t theirs = at + (size_t)q * s->chunk;
    if (WAIT_FOR(s, q, taken, step + 1)) return -1;
    if (theirs < s->whole) call_write(s->c, theirs, node_result_at(n, q, step), at_least(s->whole, theirs, s->chunk));
  }
  post(s, &node_mine(n)->finished, step + 1);
  return 0;
}

static int take(struct steps *s, uint64_t step) {
  struct node *n = s->n;
  const struct call *c = s->c;
  const int me = n->rank;
  const size_t at = step * s->part, length = at_least(s->whole, at, s->part);
  for (int i = 0; i < n->size; i++) {
    const int q = (me + i) % n->size;
    if (!call_goes(c, q, me)) continue;
    if (q != me && WAIT_FOR(s, q, put, step + 1)) return -1;
    const char *piece = node_piece_at(n, q, step) + (verb_is(c->verb, INPUT_BLOCKS) ? (size_t)me * s->chunk : 0);
    const size_t into = call_into(c, n->size, q) + at;
    if (q == me)
      call_copy(c, into, call_from(c, n->size, me) + at, length);
    else
      call_write(c, into, piece, length);
  }
  post(s, &node_mine(n)->taken, step + 1);
  return 0;
}

static int pass_on(struct steps *s, uint64_t step) { /* a link of a chain */
  struct node *n = s->n;
  const uint64_t ring = (uint64_t)node_ring(n->size);
  const int me = n->rank, is_last = me + 1 == n->size;
  const size_t at = step * s->part, length = at_least(s->whole, at, s->part);
  const char *before = me ? node_piece_at(n, me - 1, step) : NULL;
  if (me && WAIT_FOR(s, me - 1, put, step + 1)) return -1;
  if (!is_last && step >= ring && WAIT_FOR(s, me + 1, taken, step - ring + 1)) return -1;
  reduce_link(s->c, at, is_last ? NULL : node_piece_at(n, me, step), before, length / dtype_bytes(s->c->dtype));
  post(s, &node_mine(n)->taken, step + 1);
  post(s, &node_mine(n)->put, step + 1);
  return 0;
}

/* Each stage waits first, and then moves data: so it may be begun again. */
static int chain(struct steps *s) {
  for (; s->step < s->count; s->step++)
    if (pass_on(s, s->step)) return -1;
  return 0;
}

static int carry_out(struct steps *s) {
  if (verb_is(s->c->verb, PREFIXES)) return chain(s);
  const int shared = s->is_shared, gets = call_has_out(s->c, s->n->rank);
  const int reduces = verb_is(s->c->verb, REDUCTIONS) && (shared || gets), takes = gets && (shared || !reduces);
  for (; s->step < s->count + 2; s->step++, s->stage = 0) {
    const uint64_t step = s->step, second = step - 1, last = step - (shared ? 2 : 1); /* 2^64 - 1 and so on: not yet */
    if (s->stage == 0 && step < s->count && give(s, step)) return -1;
    if (s->stage < 1) s->stage = 1;
    if (s->stage == 1 && reduces && second < s->count && reduce(s, second)) return -1;
    s->stage = 2;
    if (takes && last < s->count && (shared ? take_results(s, last) : take(s, last))) return -1;
  }
  return 0;
}

static void post_all(struct node *n, uint64_t step) {
  struct node_rank *mine = node_mine(n);
  node_post(&mine->put, NODE_STEP(n->calls, step));
  node_post(&mine->taken, NODE_STEP(n->calls, step));
  node_post(&mine->finished, NODE_STEP(n->calls, step));
}

void long_count_steps(struct node *n) { post_all(n, 0); }

/* Whether a rank may still be in the last long call that we gave up. */
static int may_linger(const struct node *n) { return n->gave_up && n->seen <= n->gave_up; }

int long_give_up(struct node *n) {
  post_all(n, may_linger(n) ? STEP_GAVE_UP_TWICE : STEP_GAVE_UP);
  atomic_thread_fence(memory_order_seq_cst); /* before the program writes to its arrays */
  n->gave_up = n->calls;
  return -1;
}

/* Steps are counted anew in each call. Not before all have come, where somebody has to see that we gave up: 0. */
int long_afresh(struct node *n) {
  const int afresh = !may_linger(n);
  if (afresh) long_count_steps(n);
  return afresh;
}

/* Whoever makes a long call first reserves the pieces. All know whether there are any before they come to their first one:
   so also those who leave it by an error know whether the others will come to the next one. */
int long_find_pieces(struct node *n) {
  struct node_place *place = n->place;
  uint64_t finder = 0;
  if (atomic_compare_exchange_strong(&place->finder, &finder, (uint64_t)n->rank + 1)) {
    uint64_t units = 0;
    unsigned char domains[NODE_RANKS];
    for (int r = 0; r < n->size; r++) domains[r] = (unsigned char)node_peek(&place->rank[r].status.domain);
    char *at = segment_reserve(n->segment, (struct parts){0, node_pieces_bytes(n->size), n->size, domains}, &units);
    node_note(&place->piece_units, units);
    node_note(&place->pieces, at ? (uint64_t)(at - (char *)n->segment->head) : NODE_NO_PIECES);
    node_post(&place->found, 1);
  } else {
    n->awaited = 0;
    if (node_await(n, &place->found, NODE_AT_VALUE, 1, (int)finder - 1)) return -1;
  }
  n->pieces = node_peek(&place->pieces);
  return 0;
}

/* Whether a call is long enough to be direct. What goes through pieces is copied once more, but within caches and without
   the system: quicker up to some MiB, and longer where several ranks read it. Where these share cores, for any length. The
   root of a scatter or gather copies the blocks of all ranks into pieces or from them, but directly they all work. */
static int is_direct(const struct node *n, const struct call *c) {
  const int is_copy = c->verb == BY_EXSCAN && n->size == 2 && c->op < OP_LAND && c->dtype != F16 && c->dtype != BF16;
  const int is_block = verb_is(c->verb, GATHERING) || c->verb == BY_SCATTER;
  const uint64_t nbytes = is_block ? c->nbytes * (uint64_t)n->size : c->nbytes; /* of all ranks' blocks */
  switch (c->verb) {
    case BY_SCAN: return 0;
    case BY_EXSCAN: return is_copy && nbytes >= n->direct_from;
    case BY_SCATTER:
    case BY_GATHER: return nbytes >= n->direct_from / (n->spins && n->size > 2 ? 8 : 1);
    case BY_ALL_TO_ALL: return nbytes >= n->direct_from;
    default: return n->spins ? nbytes / 4 >= n->direct_from : !n->direct_from; /* 0: always */
  }
}

/* Nobody's x may change while others read it: an all_to_all in place goes through pieces. Nor may an array be what a
   device's driver has mapped, which the system reads for nobody else. */
static int may_reach(const struct node *n, const struct call *c) {
  int may = 1;
  for (int r = 0; r < n->size; r++)
    may &= direct_address(n, r, CALL_NBYTES) & 1 &&
           !(c->verb == BY_ALL_TO_ALL && direct_address(n, r, CALL_X) == direct_address(n, r, CALL_OUT));
  return may;
}

/* How the arrays of a rank lie, as it has brought it. */
static const struct layout *brought(const struct node *n, int rank) {
  return (const struct layout *)(node_cell(n, rank, n->calls)->data + CALL_WORDS * sizeof(uint64_t));
}

/* Whether all ranks' arrays lie alike: then they are taken as memory in order. */
static int take_alike(const struct node *n, struct call *c) {
  for (int r = 0; r < n->size; r++)
    if (brought(n, r)->axes < 0 || !layout_same(brought(n, r), brought(n, n->rank))) return 0;
  c->x_lies = c->out_lies = NULL;
  return 1;
}

/* Bring the addresses of our arrays. */
void long_come(struct steps *s, struct node *n, struct call *c) {
  *s = (struct steps){.n = n, .c = c, .state = MEETS};
  s->is_counted = long_afresh(n);
  unsigned char *data = node_cell(n, n->rank, n->calls)->data;
  struct layout *lies = (struct layout *)(data + CALL_WORDS * sizeof(uint64_t));
  call_lies(c, lies);
  const uint64_t may = n->direct && lies->axes >= 0 && is_direct(n, c) && direct_may(n, c);
  uint64_t words[CALL_WORDS] = {(uintptr_t)c->x, (uintptr_t)c->out, (uint64_t)c->nbytes << 1 | may};
  memcpy(data, words, sizeof words);
  node_arrive(n);
}

/* Compare calls, also where short ones are not compared: ranks will write into one another's memory. */
static int meet(struct steps *s) {
  struct node *n = s->n;
  n->awaited = n->calls;
  if (node_wait_for_all(n)) return -1;
  if (!s->is_counted) long_count_steps(n);
  n->awaited = 0;
  for (int r = 0; r < n->size; r++) {
    const uint64_t theirs = node_signature(n, r, n->calls);
    if (theirs == s->c->signature && direct_address(n, r, CALL_NBYTES) >> 1 == s->c->nbytes) continue;
    return node_mismatch(n, r, n->calls, theirs);
  }
  plan(s);
  s->state = take_alike(n, s->c) && may_reach(n, s->c) ? WAITS : STEPS;
  return 0;
}

/* What is direct is done at one go, when all others have counted their steps. */
static int go_direct(struct steps *s) {
  struct node *n = s->n;
  for (int r = 0; s->state == WAITS && r < n->size; r++)
    if (long_wait_for_step(n, &n->place->rank[r].put, 0, r)) return -1;
  if (s->state == WAITS) s->state = MOVES;
  if (s->state == MOVES && direct_move(n, s->c)) return -1;
  s->state = FINISHES;
  return direct_finish(n, s->c);
}

int long_go_on(struct steps *s) {
  struct node *n = s->n;
  if (s->state == MEETS && meet(s)) return -1;
  if (n->pieces == NODE_NO_PIECES) return NODE_NO_ROOM;
  n->awaited = 0;
  const int unlocked = node_unlock(n), bad = s->state == STEPS ? carry_out(s) : go_direct(s);
  if (unlocked) node_lock(n);
  return bad;
}

int long_run(struct node *n, struct call *c) {
  struct steps s;
  const int is_first = !n->has_begun_long;
  n->has_begun_long = 1;
  if (!n->pieces && long_find_pieces(n)) return n->calls = ++n->last, -1; /* others count this call, too */
  if (n->pieces == NODE_NO_PIECES && !is_first) return NODE_NO_ROOM;      /* nobody comes */
  if (node_enter(n, c->signature)) return -1;
  long_come(&s, n, c);
  const int bad = long_go_on(&s);
  return bad == -1 ? long_give_up(n) : bad;
}
