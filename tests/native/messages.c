/* messages.c: messages of ranks that are threads of one process, for sanitizers to look at.

   messages RANKS ROUNDS SEED [pieces]: in each round all ranks draw the same list of messages. Each rank begins those
   that it sends, and the receives of those that come to it in an order of its own, some from anybody; it waits for
   some at once and for all at the end, and checks what came. With `pieces`, none is read where it lies. */
#include "chance.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 60000, AT_ONCE = 40, TAGS = 4, ANY_TAG = 3 };
static struct segment segment;
static struct node_place *place;
static int ranks, rounds, pieces;
static atomic_int wrong, read_there;

static void *leave(void) { return &segment; }
static void back(void *state) { (void)state; }
static int look(struct node *n, int why, int rank) { return (void)n, (void)why, (void)rank, 0; }
static const struct node_host host = {leave, back, look};

struct drawn {
  int from, to, tag, number; /* the number-th of these three */
  int round;                 /* a rank ahead of others sends to anybody's receives of its own round only: else 0 */
  size_t nbytes;
};
static void bring(unsigned char *to, const struct drawn *d) {
  uint64_t state = (uint64_t)(((d->from * 64 + d->to) * 64 + d->tag) * 100000 + d->number);
  for (size_t i = 0; i < d->nbytes; i++)
    to[i] = (unsigned char)(i & 7 ? state >> (i & 7) * 8 : draw(&state));
}

struct begun {
  struct message m;
  struct drawn d;
  int is_send, from_anybody;
};

static void fail(const char *what, const struct begun *b) {
  printf("%s: %s of %zu bytes, %d to %d, tag %d, number %d; came %d from %d, state %d\n", what, b->is_send ? "send" : "receive",
         b->d.nbytes, b->d.from, b->d.to, b->d.tag, b->d.number, (int)b->m.came, b->m.peer, b->m.state);
  atomic_store(&wrong, 1);
}

static void end(struct mailbox *box, struct begun *b, const struct drawn *list, int listed, char *seen) {
  struct node n = {.host = &host, .spins = 10};
  if (mail_wait(box, &b->m, &n, 60)) {
    fail("late", b);
    exit(1);
  }
  if (b->m.state != MAIL_DONE)
    fail("bad", b);
  if (!b->is_send && b->from_anybody) { /* the first one of its sender that has not come yet */
    int i = 0;
    while (i < listed && (seen[i] || list[i].from != b->m.peer || list[i].to != b->d.to || list[i].tag != ANY_TAG)) i++;
    if (i == listed) {
      fail("nobody's", b);
      return;
    }
    seen[i] = 1;
    b->d = list[i];
  }
  if (!b->is_send) {
    unsigned char *want = malloc(MOST);
    bring(want, &b->d);
    atomic_fetch_add(&read_there, b->m.there != 0);
    if (b->m.came != b->d.nbytes || b->m.peer != b->d.from || memcmp(want, b->m.at, b->d.nbytes))
      fail("wrong", b);
    free(want);
  }
  free(b->m.at);
  b->m.at = NULL;
}

static void begin(struct mailbox *box, struct begun *b) {
  b->m = (struct message){.nbytes = b->is_send ? b->d.nbytes : MOST, .tag = (uint64_t)(b->d.tag + b->d.round * TAGS),
                          .peer = b->is_send ? b->d.to : b->from_anybody ? MAIL_ANYBODY : b->d.from};
  b->m.at = malloc(b->is_send ? b->d.nbytes + 1 : MOST);
  if (!b->is_send) {
    mail_receive(box, &b->m);
    return;
  }
  bring((unsigned char *)b->m.at, &b->d);
  if (!mail_connect(box, b->d.to))
    exit(4);
  if (b->d.number % 2 && mail_send_now(box, b->d.to, b->m.tag, b->m.at, b->m.nbytes)) {
    memset(b->m.at, 0xee, b->d.nbytes); /* it may be changed */
    b->m.state = MAIL_DONE;
    return;
  }
  mail_send(box, &b->m);
}

static void *rank(void *arg) {
  const int me = (int)(intptr_t)arg;
  uint64_t common = seed, own = seed ^ (uint64_t)(me + 1) << 32;
  const uint64_t mark = 77;
  struct node n = {.host = &host};
  node_attach(&n, &segment, place, me);
  n.direct = !pieces && direct_reaches_process(getpid(), (uint64_t)(uintptr_t)&mark, mark);
  struct mailbox *box = mail_open(&n);
  int (*counts)[NODE_RANKS][TAGS] = calloc(NODE_RANKS, sizeof *counts);
  for (int round = 0; round < rounds; round++) {
    struct drawn list[AT_ONCE];
    struct begun mine[2 * AT_ONCE];
    char seen[AT_ONCE] = {0};
    const int listed = 1 + (int)(draw(&common) % AT_ONCE);
    int count = 0;
    for (int i = 0; i < listed; i++) {
      const uint64_t kind = draw(&common) % 8;
      const int from = (int)(draw(&common) % (unsigned)ranks), to = (int)(draw(&common) % (unsigned)ranks),
                tag = (int)(draw(&common) % TAGS);
      const size_t most = kind < 5 ? 100 : kind < 7 ? 5000 : MOST;
      list[i] = (struct drawn){from, to, tag, counts[from][to][tag]++, tag == ANY_TAG ? round : 0,
                               draw(&common) % most};
      if (from == me)
        mine[count++] = (struct begun){.d = list[i], .is_send = 1};
      if (to == me)
        mine[count++] = (struct begun){.d = list[i], .from_anybody = tag == ANY_TAG};
    }
    for (int i = count - 1; i > 0; i--) { /* another order, but for those of one source, or dest, and tag */
      const int other = (int)(draw(&own) % (unsigned)(i + 1));
      const struct begun swapped = mine[i];
      mine[i] = mine[other];
      mine[other] = swapped;
    }
    for (int i = 0; i < count; i++)
      for (int k = i + 1; k < count; k++) {
        struct begun *a = &mine[i], *b = &mine[k], swapped = *a;
        if (a->is_send == b->is_send && a->d.from == b->d.from && a->d.to == b->d.to && a->d.tag == b->d.tag &&
            a->d.number > b->d.number)
          *a = *b, *b = swapped;
      }
    for (int i = 0; i < count; i++) {
      begin(box, &mine[i]);
      if (draw(&own) % 16 == 0)
        nanosleep(&(struct timespec){0, (long)(draw(&own) % 100000)}, NULL);
    }
    for (int i = 0; i < count; i++)
      if (mine[i].is_send || !mine[i].from_anybody)
        end(box, &mine[i], list, listed, seen);
    for (int i = 0; i < count; i++) /* matched in the order in which they were begun */
      if (mine[i].m.at)
        end(box, &mine[i], list, listed, seen);
    box->over.first = NULL; /* they are on this stack */
  }
  mail_close(box);
  node_leave(&segment, place);
  free(box), free(counts);
  return NULL;
}

int main(int argc, char **argv) {
  if (argc < 4)
    return 2;
  ranks = atoi(argv[1]), rounds = atoi(argv[2]), seed = strtoull(argv[3], NULL, 0), pieces = argc > 4;
  int file = memfd_create("messages", 0);
  const size_t nbytes = segment_bytes(64u << 20);
  if (ftruncate(file, (off_t)nbytes) || segment_open(&segment, file, nbytes, 1))
    return 3;
  uint64_t units;
  void *before = segment_reserve(&segment, (struct parts){.head = 1}, &units);
  segment_release(&segment, before, units, 0);
  place = node_reserve(&segment, ranks, NULL);
  pthread_t thread[NODE_RANKS];
  for (int r = 0; r < ranks; r++)
    pthread_create(&thread[r], NULL, rank, (void *)(intptr_t)r);
  for (int r = 0; r < ranks; r++)
    pthread_join(thread[r], NULL);
  void *after = segment_reserve(&segment, (struct parts){.head = nbytes / 2}, &units);
  if (after != before) {
    printf("units were not given back\n");
    wrong = 1;
  }
  printf("%s: %d read where they lay\n", wrong ? "WRONG" : "right", read_there);
  return wrong;
}
