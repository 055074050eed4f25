/* arrive.c: a rank comes to a call, and waits for the others to come to the same one.

   Each rank has eight cells; call k uses cell k % 8. A rank lays its data there, and its signature, and then its
   arrival (release). Whoever sees that arrival (acquire) sees the data. Cell k % 8 is written again by call k + 8,
   which a rank begins only when all others have come to call k + NODE_PENDING, so have left call k: nobody has more calls
   than that in the background (request.c). Nobody is eight calls ahead of anybody: the cell of the call that a rank is in
   holds the number that it waits for, or one before, never a later one. Ranks run ahead in calls that wait for some ranks
   only: a broadcast's root waits for nobody. Where ranks share cores, each so makes several calls before it gives its
   core to another.

   Of two ranks that come to a call, the later one compares their signatures (node_wait_for_rank, node_compare). The earlier one
   does, too, when it next waits for all or for long, at the latest four calls later (node_compare_earlier,
   wait_for_all_at).
   If the later one has gone on that far, the highest bit of a signature says that it is another call's.

   Withdrawal (only where n->synchronous: all ranks wait for all in every call). A rank whose time is over

        ARRIVED --(timeout)--> DOUBTS --(somebody has not come)--> WITHDRAWN: the call fails on all who wait
           ^                     |
           +--(all have come)----+   and goes on waiting: for those who doubt too

   A rank passes when it has seen every other one ARRIVED, in a look that began after all had come. Why nobody
   passes a call that another one withdraws: that one stored DOUBTS before it looked and found somebody missing;
   whoever passes looks after that one came, and all these stores and loads are sequentially consistent.
   protocol.pml is a model of this, which `spin` checks for 2 and 3 ranks. */
#include "node.h"

#include <unistd.h>

static uint64_t load_in_order(const node_word *at) {
  return atomic_load_explicit((node_word *)at, memory_order_seq_cst);
}
static void store_in_order(node_word *at, uint64_t value) {
  node_stop_point();
  atomic_store_explicit(at, value, memory_order_seq_cst);
  node_stop_point();
}

void node_attach(struct node *n, struct segment *s, struct node_place *place, int rank) {
  n->segment = s;
  n->place = place;
  n->rank = rank;
  n->size = (int)place->size;
  n->calls = n->last = n->published = n->seen = n->told = n->gave_up = 0;
  struct node_rank *mine = node_mine(n);
  node_note(&mine->status.rank, NODE_RANKS);
  node_note(&mine->status.pid, (uint64_t)getpid());
  node_note(&mine->status.queued, 0);
}

static void publish(struct node *n, uint64_t signature, uint64_t state) {
  struct node_cell *cell = node_cell(n, n->rank, n->published);
  node_note(&cell->signature, signature ^ NODE_LAP(n->published));
  uint64_t arrival = NODE_ARRIVAL(n->published, state);
  if (n->synchronous)
    store_in_order(&cell->arrival, arrival);
  else
    node_post(&cell->arrival, arrival);
}

/* Of a call to which this rank and another one have come: do they mean the same? */
static int compare(struct node *n, int rank, uint64_t number) {
  const uint64_t ours = number == n->calls ? n->signature : node_signature(n, n->rank, number);
  const uint64_t theirs = node_signature(n, rank, number);
  const int differ = n->checks && ours != theirs && ours && theirs && number > n->told;
  return differ ? node_mismatch(n, rank, number, theirs) : 0;
}

/* Compare our calls that are over, and for which we did not wait, with those who have come to them. */
int node_compare_earlier(struct node *n) {
  for (uint64_t number = n->seen + 1; n->checks && number < n->calls; number++)
    for (int r = 0; r < n->size; r++)
      if (!node_is_behind(node_load(&node_cell(n, r, number)->arrival), number) && compare(n, r, number)) return -1;
  return 0;
}

/* Wait until all others have come to this call, which is over here. */
static int wait_for_all_at(struct node *n, uint64_t number) {
  n->awaited = number;
  for (int r = 0; r < n->size; r++) {
    if (r == n->rank) continue;
    const node_word *at = &node_cell(n, r, number)->arrival;
    if (node_await(n, at, NODE_PAST_CALL, NODE_ARRIVAL(number, 0), r) || compare(n, r, number)) return -1;
  }
  n->seen = number;
  return 0;
}

static int enter(struct node *n, uint64_t number, uint64_t signature) {
  n->calls = number;
  n->signature = signature;
  while (n->published < number) {
    const uint64_t next = n->published + 1; /* its cell was call next - 8's, which others have left who have come to this: */
    const uint64_t left_by = next + NODE_PENDING - NODE_CELLS;
    if (n->seen + NODE_CELLS < next + NODE_PENDING && wait_for_all_at(n, left_by)) return -1;
    n->published = next;
    if (n->published < number) publish(n, 0, NODE_WITHDRAWN);
  }
  n->awaited = number;
  n->arrival = NODE_ARRIVAL(number, NODE_ARRIVED);
  return 0;
}

/* Begin a call: from now on our cell may be written. A call that fails here was not come to, but has its number:
   it is published as withdrawn as soon as that may be, so that all ranks count alike. */
int node_enter(struct node *n, uint64_t signature) { return enter(n, ++n->last, signature); }

int node_enter_request(struct node *n, uint64_t signature) {
  if (enter(n, n->last + 1, signature)) return -1;
  n->last++;
  return 0;
}

void node_arrive(struct node *n) { publish(n, n->signature, NODE_ARRIVED); }
void node_pass(struct node *n) { publish(n, 0, NODE_WITHDRAWN); }

int node_missing(struct node *n, unsigned char *which) {
  int missing = 0;
  for (int r = 0; r < n->size; r++) {
    uint64_t seen = load_in_order(&node_cell(n, r, n->awaited)->arrival);
    which[r] = r != n->rank && node_is_behind(seen, n->awaited);
    missing += which[r];
  }
  return missing;
}

/* Our time is over: take the arrival back (1), unless all have come meanwhile (0). */
static int withdraw(struct node *n) {
  unsigned char which[NODE_RANKS];
  node_word *ours = &node_cell(n, n->rank, n->calls)->arrival;
  n->awaited = n->calls;
  store_in_order(ours, NODE_ARRIVAL(n->calls, NODE_DOUBTS));
  int missing = node_missing(n, which);
  store_in_order(ours, NODE_ARRIVAL(n->calls, missing ? NODE_WITHDRAWN : NODE_ARRIVED));
  return missing > 0;
}

/* Wait until this rank has come to our call. */
int node_wait_for_rank(struct node *n, int rank) {
  const struct node_cell *cell = node_cell(n, rank, n->calls);
  int result = node_wait(n, &cell->arrival, NODE_AT_CALL, n->arrival, rank);
  if (result && n->synchronous && !n->is_late) {
    int withdrawn = withdraw(n);
    if (result == -WHY_LATE && !withdrawn) { /* all have come: whoever doubts too makes up his mind soon */
      const double limit = n->limit;
      n->limit = NODE_FOR_EVER;
      result = node_wait(n, &cell->arrival, NODE_AT_CALL, n->arrival, rank);
      n->limit = limit;
    }
  }
  return result ? node_fail(n, -result, rank) : compare(n, rank, n->calls);
}

/* Compare with those for whom we did not wait, as far as they have come: of two ranks that wait for nobody, as two roots
   of one broadcast, the later one hears of it. */
int node_compare(struct node *n) {
  atomic_thread_fence(memory_order_seq_cst); /* our arrival is out before we look: one of two sees the other */
  for (int r = 0; r < n->size; r++)
    if (r != n->rank && node_load(&node_cell(n, r, n->calls)->arrival) == n->arrival && compare(n, r, n->calls)) return -1;
  return 0;
}

int node_wait_for_all(struct node *n) {
  for (int pass = 0; pass < (n->synchronous && n->size > 2 ? 2 : 1); pass++)
    for (int r = 0; r < n->size; r++)
      if (r != n->rank && node_wait_for_rank(n, r)) return -1;
  int bad = node_compare_earlier(n);
  if (n->seen < n->calls) n->seen = n->calls;
  return bad;
}

/* Come to a call with a few bytes, and wait until all have come to it. */
int node_arrive_and_wait(struct node *n, uint64_t signature, const void *said, size_t nbytes) {
  if (node_enter(n, signature)) return -1;
  if (nbytes) memcpy(node_cell(n, n->rank, n->calls)->data, said, nbytes);
  node_arrive(n);
  return node_wait_for_all(n);
}

/* Calls that are carried out elsewhere are not waited for: their signatures stand in a log, each before the count. Whoever
   reads one looks at the count again, since the writer begins to write over it when it has made NODE_LOG - 1 more. The
   count is sequentially consistent: of two ranks that each log a call and then look at the other, one sees the other's. */
uint64_t node_log_call(struct node *n, uint64_t signature) {
  node_word *calls = &node_mine(n)->log.calls;
  const uint64_t number = node_peek(calls) + 1;
  node_post(&node_mine(n)->log.signature[number % NODE_LOG], signature);
  store_in_order(calls, number);
  return number;
}

int node_logged_call(const struct node *n, int rank, uint64_t number, uint64_t *signature) {
  const struct node_rank *its = &n->place->rank[rank];
  if (number - 1 >= load_in_order(&its->log.calls)) return 0;
  *signature = node_load(&its->log.signature[number % NODE_LOG]);
  return node_load(&its->log.calls) < number + NODE_LOG - 1;
}
