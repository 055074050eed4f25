/* threads.c: the ranks of a node as threads of one process, for sanitizers to
   look at.

   threads RANKS CALLS SEED [direct] [synchronous]: random calls of random sizes
   with random delays; all ranks draw the same calls, each checks its result
   against what it knows the others brought. Of half of the short ones each rank
   draws, too, whether it makes them in the background. With `synchronous`, deadlines are
   short and delays long: of each call either all ranks succeed, or none. */
#include "chance.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 400000 };
static struct segment segment;
static struct node_place *place;
static struct node_channel *channels[NODE_RANKS];
static int ranks, calls, direct, synchronous;
static atomic_int *passed, *is_long; /* ranks that passed call i; whether a rank
                                        can fail when all have come */
static atomic_int wrong, failures;
static pthread_barrier_t together;

static void *leave(void) { return &segment; }
static void back(void *state) { (void)state; }
static int look(struct node *n, int why, int rank) {
  (void)n, (void)rank;
  if (why == WHY_WAITS)
    return 0;
  atomic_fetch_add(&failures, 1);
  if (!synchronous || why == WHY_MISMATCH) {
    printf("rank %d failed for rank %d: %d\n", n->rank, rank, why);
    atomic_store(&wrong, 1);
  }
  return -1;
}
static const struct node_host host = {leave, back, look};

static void bring(unsigned char *to, size_t nbytes, int rank, int call) {
  uint64_t state = (uint64_t)rank * 1000003u + (uint64_t)call;
  for (size_t i = 0; i < nbytes; i++)
    to[i] =
        (unsigned char)((i & 7 ? state >> (i & 7) * 8 : draw(&state)) & 0x3f);
}

static int expected(const struct call *c, int me, int number, size_t total,
                    unsigned char **x, unsigned char *want) {
  const size_t nbytes = c->nbytes, block = nbytes / (size_t)ranks;
  const void *in[NODE_RANKS];
  for (int r = 0; r < ranks; r++) {
    bring(x[r], total, r, number);
    in[r] = x[r] + (c->verb == BY_REDUCE_SCATTER ? (size_t)me * block : 0);
  }
  const size_t count =
      (c->verb == BY_REDUCE_SCATTER ? block : nbytes) / dtype_bytes(c->dtype);
  const int end = c->verb == BY_SCAN     ? me + 1
                  : c->verb == BY_EXSCAN ? me
                                         : ranks;
  switch (c->verb) {
  case BY_BARRIER:
    return 0;
  case BY_BROADCAST:
    memcpy(want, x[c->root], nbytes);
    return (int)nbytes;
  case BY_SCATTER:
    memcpy(want, x[c->root] + (size_t)me * nbytes, nbytes);
    return (int)nbytes;
  case BY_GATHER:
  case BY_ALL_GATHER:
    if (c->verb == BY_GATHER && me != c->root)
      return 0;
    for (int r = 0; r < ranks; r++)
      memcpy(want + (size_t)r * nbytes, x[r], nbytes);
    return (int)nbytes * ranks;
  case BY_ALL_TO_ALL:
    for (int r = 0; r < ranks; r++)
      memcpy(want + (size_t)r * block, x[r] + (size_t)me * block, block);
    return (int)nbytes;
  case BY_REDUCE:
    if (me != c->root)
      return 0;
    break;
  default:
    break;
  }
  if (end)
    reduce_arrays(c->dtype, c->op, ranks, want, in, end, count);
  return end ? (int)(count * dtype_bytes(c->dtype)) : 0;
}

static void pause_a_little(uint64_t *own, int often, long most_ns) {
  uint64_t d = draw(own);
  if (d % 100 < (unsigned)often)
    nanosleep(&(struct timespec){0, (long)(d >> 8) % most_ns}, NULL);
}

static struct call drawn(uint64_t *common) {
  struct call c = {0};
  c.verb = 1 + (int)(draw(common) % 11);
  do {
    c.dtype = 1 + (int)(draw(common) % (DTYPES - 1));
    c.op = (int)(draw(common) % OPS);
  } while (!reduce_knows(c.dtype, c.op) ||
           (c.op == OP_AVG &&
            (c.verb == BY_SCAN || c.verb == BY_EXSCAN)));
  c.root = (int)(draw(common) % (unsigned)ranks);
  if (!verb_is(c.verb, ROOTED))
    c.root = 0; /* as from Python */
  const uint64_t kind = draw(common) % 8;
  size_t most = kind < 4 ? 16 : kind < 6 ? 2000 : kind < 7 ? 30000 : MOST;
  c.count = draw(common) % (most / dtype_bytes(c.dtype) + 1);
  if (c.verb == BY_BARRIER)
    c.count = 0;
  if (c.verb == BY_ALL_TO_ALL || c.verb == BY_REDUCE_SCATTER)
    c.count = c.count / (unsigned)ranks * (unsigned)ranks;
  c.nbytes = c.count * dtype_bytes(c.dtype);
  return c;
}

/* Some more background calls of ours, and a look at what others have begun:
   whatever is found must be that number's, and what was begun is there. */
static void look_at_logs(struct node *n, uint64_t *own) {
  const uint64_t factor = 0x9E3779B97F4A7C15ull;
  for (uint64_t more = draw(own) % 9; more; more--) {
    uint64_t number = node_log_call(n, 0);
    if (number % 3)
      node_log_call(n, (number + 1) * factor);
  }
  for (int look = 0; look < 50; look++) {
    const int rank = (int)(draw(own) % (unsigned)ranks);
    const uint64_t last = node_load(&place->rank[rank].log.calls),
                   back = draw(own) % (NODE_LOG + 4);
    uint64_t signature = 0, number = back < last ? last - back : 1;
    const int found = node_logged_call(n, rank, number, &signature);
    if ((found && signature && signature != number * factor) ||
        (!found && last && rank == n->rank && back < NODE_LOG - 1)) {
      printf("rank %d's call %d of %d: %d\n", rank, (int)number, (int)last,
             found);
      atomic_store(&wrong, 1);
    }
  }
}

enum { BLOCKS = 12 };

/* How long the blocks are that a rank gives another one in a call: few or many,
   short or long. */
static size_t drawn_blocks(int call, int from, int to, size_t *lengths) {
  uint64_t state = seed ^ (uint64_t)call << 20 ^ (uint64_t)(from * ranks + to);
  const size_t count = draw(&state) % BLOCKS, most = draw(&state) % 4;
  for (size_t i = 0; i < count; i++)
    lengths[i] = draw(&state) % (most == 3 ? 20000 : most == 2 ? 2000 : 40);
  return count;
}

struct expected { /* the blocks that a rank is to get in a call */
  struct node *n;
  int call, cut, from; /* from whom the last one came, */
  size_t last, lengths[BLOCKS], total;
  unsigned char *got; /* and where it is */
};

static void check_last(struct expected *e) {
  unsigned char want[20000];
  if (!e->total)
    return;
  bring(want, e->lengths[e->last], e->from,
        (e->cut ? e->n->rank : 0) + (int)e->last);
  if (memcmp(want, e->got, e->lengths[e->last])) {
    printf("rank %d, call %d: block %zu of rank %d\n", e->n->rank, e->call,
           e->last, e->from);
    atomic_store(&wrong, 1);
  }
}

static char *memory(void *program, int from, size_t block, size_t nbytes,
                    int is_short) {
  struct expected *e = program;
  (void)is_short;
  check_last(e);
  e->from = from, e->last = block, e->total++;
  if (block >= drawn_blocks(e->call, from, e->cut ? e->n->rank : 0,
                            e->lengths) ||
      nbytes != e->lengths[block]) {
    atomic_store(&wrong, 1);
    return NULL;
  }
  return (char *)e->got;
}

/* Blocks of all sorts from the ranks that give to those that take. */
static int share(struct node *n, uint64_t *common, int call) {
  static const int verbs[] = {BY_BROADCAST, BY_GATHER, BY_ALL_GATHER,
                              BY_SCATTER, BY_ALL_TO_ALL};
  struct call c = {.verb = verbs[draw(common) % 5],
                   .root = (int)(draw(common) % (unsigned)ranks)};
  c.signature = (uint64_t)c.verb + 100;
  const int cut = c.verb == BY_SCATTER || c.verb == BY_ALL_TO_ALL;
  struct node_part *blocks = malloc((size_t)(ranks * BLOCKS) * sizeof *blocks);
  unsigned char got[20000];
  struct expected e = {.n = n, .call = call, .cut = cut, .got = got};
  size_t counts[NODE_RANKS], lengths[BLOCKS], total = 0, comes = 0;
  for (int to = 0; to < (cut ? ranks : 1); to++) {
    counts[to] = drawn_blocks(call, n->rank, to, lengths);
    for (size_t i = 0; i < counts[to]; i++) {
      unsigned char *at = malloc(lengths[i] + 1);
      bring(at, lengths[i], n->rank, to + (int)i);
      blocks[total++] = (struct node_part){(uintptr_t)at, lengths[i]};
    }
  }
  const int bad = share_run(n, &c, blocks, counts, memory, &e);
  for (int r = 0; r < ranks; r++)
    if (r != n->rank && call_goes(&c, r, n->rank))
      comes += drawn_blocks(call, r, cut ? n->rank : 0, lengths);
  if (!bad && comes != e.total)
    atomic_store(&wrong, 1);
  if (!bad)
    check_last(&e);
  for (size_t i = 0; i < total; i++)
    free((void *)(uintptr_t)blocks[i].at);
  free(blocks);
  return bad == NODE_NO_ROOM ? 0 : bad; /* in qemu nobody reads others' memory */
}

enum { QUEUED = 9, QUEUED_MOST = 40000 };

struct queued { /* calls in the background, and what the ranks brought */
  struct request request;
  unsigned char *x, *out;
  int call, is_free;
};

static int check(struct node *n, const struct call *c, int call,
                 unsigned char **x, unsigned char *want);

/* Move the first one on. */
static int move_one(struct node *n, int patience, unsigned char **x,
                    unsigned char *want) {
  struct queued *l =
      n->first ? (struct queued *)request_move(n, patience) : NULL;
  if (!l)
    return 0;
  l->is_free = 1;
  if (l->request.has_failed) {
    printf("rank %d: call %d failed in the background\n", n->rank, l->call);
    atomic_store(&wrong, 1);
    return 0;
  }
  check(n, &l->request.call, l->call, x, want);
  return 1;
}

/* Begin a call in the background; how many of them end now is chance. */
static void begin_one(struct node *n, struct queued *queue, struct call c,
                      int call, int in_place, uint64_t *own, unsigned char **x,
                      unsigned char *want) {
  struct queued *l = queue;
  while (l < queue + QUEUED && !l->is_free)
    l++;
  if (l == queue + QUEUED) {
    move_one(n, PATIENT, x, want);
    return begin_one(n, queue, c, call, in_place, own, x, want);
  }
  const size_t total =
      c.verb == BY_SCATTER ? c.nbytes * (size_t)ranks : c.nbytes;
  unsigned char *mine = in_place ? l->out : l->x;
  bring(mine, total, n->rank, call);
  c.x = (char *)mine;
  c.out = (char *)l->out;
  call_sign(&c);
  if (c.verb == BY_BARRIER) /* of which nothing else is compared */
    c.signature = BY_BARRIER;
  if (call_is_long(n, &c) && !n->pieces)
    long_find_pieces(n);
  n->has_begun_long |= call_is_long(n, &c);
  l->request = (struct request){.call = c};
  l->call = call;
  l->is_free = 0;
  request_begin(n, &l->request);
  request_enter(n);
  for (uint64_t tries = draw(own) % 4; tries; tries--) {
    move_one(n, TRIES, x, want);
    request_enter(n);
    pause_a_little(own, 20, 50000);
  }
}

/* Places made while others are freed: no two threads ever have the same one. */
static void make_and_free(int me, uint64_t *own) {
  static struct node_place *shared;
  for (int i = 0; i < calls * 10; i++) {
    if (me == 0)
      shared = node_reserve(&segment, ranks, NULL);
    pthread_barrier_wait(&together);
    struct node_place *freed = shared;
    pthread_barrier_wait(&together);
    node_leave(&segment, freed);
    for (int k = 0; k < 3; k++) {
      const int size = 1 + (int)(draw(own) % 3);
      struct node_place *made = node_reserve(&segment, size, NULL);
      node_note(&made->rank[0].words[0], (uint64_t)me + 1);
      pause_a_little(own, 2, 1000);
      if (node_peek(&made->rank[0].words[0]) != (uint64_t)me + 1)
        atomic_store(&wrong, 1);
      for (int r = 0; r < size; r++)
        node_leave(&segment, made);
    }
  }
}

/* Whether a call's result is what the others brought. */
static int check(struct node *n, const struct call *c, int call,
                 unsigned char **x, unsigned char *want) {
  const size_t total =
      c->verb == BY_SCATTER ? c->nbytes * (size_t)ranks : c->nbytes;
  atomic_fetch_add(&passed[call], 1);
  const int length = expected(c, n->rank, call, total, x, want);
  if (!memcmp(want, c->out, (size_t)length))
    return 1;
  printf("rank %d of %d, call %d: verb %d op %d dtype %d count %zu root %d "
         "in place %d\n",
         n->rank, ranks, call, c->verb, c->op, c->dtype, c->count, c->root,
         c->x == c->out);
  atomic_store(&wrong, 1);
  return 0;
}

enum { IN_ORDER, FROM_THE_END, EVERY_OTHER, BY_COLUMNS, WAYS }; /* to lie */

static unsigned char *element(unsigned char *at, int way, size_t i, size_t n,
                              size_t size) {
  const size_t by_columns = i / 2 + i % 2 * (n / 2);
  return at + size * (way == FROM_THE_END  ? n - 1 - i
                      : way == EVERY_OTHER ? 2 * i
                      : way == BY_COLUMNS  ? by_columns
                                           : i);
}

/* Let n elements of an array lie so, at another place, or bring them back. */
static void carry(unsigned char *array, unsigned char *there, int way, size_t n,
                  size_t size, int back) {
  for (size_t i = 0; i < n; i++) {
    unsigned char *one = element(there, way, i, n, size);
    memcpy(back ? array + i * size : one, back ? one : array + i * size, size);
  }
}

/* A call on arrays that lie in one way on all ranks, on each, or in any. */
static int run_lying(struct node *n, struct call c, uint64_t *common,
                     uint64_t *own, unsigned char *x_there,
                     unsigned char *out_there) {
  const size_t size = dtype_bytes(c.dtype), all = (size_t)ranks;
  const size_t count[2] = {c.count * (c.verb == BY_SCATTER ? all : 1),
                           c.verb == BY_REDUCE_SCATTER ? c.count / all
                           : verb_is(c.verb, GATHERING) ? c.count * all
                                                        : c.count};
  unsigned char *x = (unsigned char *)c.x, *out = (unsigned char *)c.out;
  unsigned char *there[2] = {x == out ? out_there : x_there, out_there};
  struct layout lies[2];
  const int alike = (int)(draw(common) % 8), mine = (int)(draw(own) % WAYS);
  int way[2];
  for (int i = 0; i < 2; i++) {
    way[i] = alike < WAYS                ? alike
             : alike < 7 || x == out ? mine
                                     : (int)(draw(own) % WAYS);
    if (count[i] % 2 || count[i] < 4)
      way[i] = IN_ORDER;
    unsigned char *first = element(there[i], way[i], 0, count[i], size);
    const int64_t shape[2] = {(int64_t)count[i] / 2, 2};
    const int64_t steps[2] = {
        element(there[i], way[i], 2, count[i], size) - first,
        element(there[i], way[i], 1, count[i], size) - first};
    layout_of(&lies[i], size, way[i] ? 2 : 0, shape, steps);
    carry(i ? out : x, there[i], way[i], count[i], size, 0);
    there[i] = first;
  }
  const int gives = call_has_x(&c, n->rank), gets = call_has_out(&c, n->rank);
  c.x = gives ? (char *)there[0] : NULL;
  c.out = gets ? (char *)there[1] : NULL;
  c.x_lies = gives && lies[0].axes ? &lies[0] : NULL;
  c.out_lies = gets && lies[1].axes ? &lies[1] : NULL;
  const int bad = node_run(n, &c);
  carry(out, out_there, way[1], count[1], size, 1);
  return bad;
}

static void *rank(void *arg) {
  const int me = (int)(intptr_t)arg, next = (me + 1) % ranks,
            last = (me + ranks - 1) % ranks;
  uint64_t common = seed, own = seed ^ (uint64_t)(me + 1) << 32;
  const uint64_t most = direct ? 0 : UINT64_MAX;
  struct node n = {.host = &host,
                   .checks = 1,
                   .synchronous = synchronous,
                   .direct = direct_reaches_process(
                       getpid(), (uint64_t)(uintptr_t)&most, most),
                   .direct_from = most};
  struct channel to = {.node = {.host = &host}},
                 from = {.node = {.host = &host}};
  const size_t room = (size_t)MOST * (size_t)ranks + 64;
  unsigned char *x[NODE_RANKS], *out = malloc(room), *want = malloc(room),
                                *mine = malloc(room), *x_there = malloc(2 * room),
                *out_there = malloc(2 * room);
  for (int r = 0; r < ranks; r++)
    x[r] = malloc(room);
  struct queued queue[QUEUED];
  for (int i = 0; i < QUEUED; i++)
    queue[i] = (struct queued){.x = malloc(QUEUED_MOST * (size_t)ranks),
                               .out = malloc(QUEUED_MOST * (size_t)ranks),
                               .is_free = 1};
  node_attach(&n, &segment, place, me);
  n.spins = (int)(draw(&own) % 200);
  channel_attach(&to, &segment, channels[me], next);
  channel_attach(&from, &segment, channels[last], last);
  for (int i = 0; i < calls; i++) {
    struct call c = drawn(&common);
    const int in_place = draw(&common) % 3 == 0;
    const size_t total =
        c.verb == BY_SCATTER ? c.nbytes * (size_t)ranks : c.nbytes;
    bring(mine, total, me, i);
    memset(out, 0xee, room);
    c.x = (char *)mine;
    c.out = (char *)out;
    if (in_place &&
        (c.verb == BY_ALL_REDUCE || c.verb == BY_SCAN || c.verb == BY_EXSCAN ||
         c.verb == BY_BROADCAST || c.verb == BY_ALL_TO_ALL)) {
      memcpy(out, mine, total);
      c.x = (char *)out;
    }
    pause_a_little(&own, synchronous ? 10 : 5, synchronous ? 1500000 : 100000);
    if (synchronous)
      n.timeout = (double)(1 + draw(&own) % 1000000) * 1e-9;
    if (total > NODE_INLINE)
      atomic_store(&is_long[i], 1);
    look_at_logs(&n, &own);
    const int apart = !synchronous && c.nbytes < QUEUED_MOST && draw(&common) % 2;
    if (apart && draw(&own) % 4) { /* else beside others' in the background */
      const int may = c.verb == BY_ALL_REDUCE || c.verb == BY_SCAN ||
                      c.verb == BY_EXSCAN || c.verb == BY_BROADCAST ||
                      c.verb == BY_ALL_TO_ALL;
      begin_one(&n, queue, c, i, in_place && may, &own, x, want);
      continue;
    }
    while (n.first)
      if (!move_one(&n, PATIENT, x, want))
        return NULL;
    const int bad = c.verb == BY_BARRIER ? node_arrive_and_wait(&n, BY_BARRIER, NULL, 0)
                    : apart                ? node_run(&n, &c)
                                           : run_lying(&n, c, &common, &own, x_there, out_there);
    if (bad && !synchronous) {
      printf("call %d of verb %d: %d\n", i, c.verb, bad);
      atomic_store(&wrong, 1);
      break;
    }
    if (!bad) {
      check(&n, &c, i, x, want);
    }
    if (apart)
      continue;
    if (!synchronous && i % 3 == 0 && share(&n, &common, i)) {
      printf("call %d of blocks failed\n", i);
      atomic_store(&wrong, 1);
      break;
    }
    if (!synchronous && i % 4 == 0 &&
        ranks > 1) { /* a message round the ring; ranks are even and odd */
      const size_t length = draw(&common) % 500;
      for (int turn = 0; turn < 2; turn++) { /* send, or receive */
        char *box = channel_box(turn == me % 2 ? &to : &from, turn == me % 2);
        if (!box)
          return NULL;
        if (turn == me % 2) {
          bring((unsigned char *)box, length, me, i);
          channel_fill(&to);
        } else {
          memcpy(out, box, length);
          channel_free(&from);
        }
      }
      bring(want, length, last, i);
      if (memcmp(want, out, length))
        atomic_store(&wrong, 1);
    }
  }
  while (n.first)
    if (!move_one(&n, PATIENT, x, want))
      break;
  for (int i = 0; i < QUEUED; i++)
    free(queue[i].x), free(queue[i].out);
  node_leave(&segment, place);
  channel_leave(&segment, channels[me]);
  channel_leave(&segment, channels[last]);
  make_and_free(me, &own);
  for (int r = 0; r < ranks; r++)
    free(x[r]);
  free(out), free(want), free(mine), free(x_there), free(out_there);
  free(n.scratch);
  return NULL;
}

int main(int argc, char **argv) {
  if (argc < 4)
    return 2;
  ranks = atoi(argv[1]), calls = atoi(argv[2]),
  seed = strtoull(argv[3], NULL, 0);
  for (int i = 4; i < argc; i++) {
    direct |= argv[i][0] == 'd';
    synchronous |= argv[i][0] == 's';
  }
  passed = calloc((size_t)calls + 1, sizeof *passed);
  is_long = calloc((size_t)calls + 1, sizeof *is_long);
  int file = memfd_create("threads", 0);
  const size_t nbytes = segment_bytes(256u << 20);
  if (ftruncate(file, (off_t)nbytes) || segment_open(&segment, file, nbytes, 1))
    return 3;
  uint64_t units;
  void *before = segment_reserve(&segment, (struct parts){.head = 1}, &units);
  segment_release(&segment, before, units, 0);
  place = node_reserve(&segment, ranks, NULL);
  for (int r = 0; r < ranks; r++)
    channels[r] = channel_reserve(&segment, 500);
  pthread_barrier_init(&together, NULL, (unsigned)ranks);
  pthread_t thread[NODE_RANKS];
  for (int r = 0; r < ranks; r++)
    pthread_create(&thread[r], NULL, rank, (void *)(intptr_t)r);
  for (int r = 0; r < ranks; r++)
    pthread_join(thread[r], NULL);
  int complete = 0;
  for (int i = 0; i < calls; i++) {
    complete += passed[i] == ranks;
    if (passed[i] % ranks && !is_long[i]) {
      printf("call %d passed on %d of %d ranks\n", i, passed[i], ranks);
      wrong = 1;
    }
  }
  if (segment_reserve(&segment, (struct parts){.head = 1}, &units) != before) {
    wrong = 1;
    printf("units were not given back\n");
  }
  printf("%s: %d of %d calls passed, %d failures\n", wrong ? "WRONG" : "right",
         complete, calls, failures);
  segment_close(&segment);
  free((void *)passed);
  free((void *)is_long);
  return wrong;
}
