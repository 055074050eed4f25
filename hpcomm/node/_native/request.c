/* request.c: calls in the background. They wait in a queue, and each is carried out in parts, by whoever
   waits or asks.

     begun --(cell free)--> come to: x lies there --(others have come)--> reduced, taken: ended
     a long one: -------->  its address lies there -----------------> step by step, or direct

   A rank comes to NODE_PENDING calls, at most, before it has left the first of them; other ranks count on that where they
   write a cell again. A long call comes when it is the first in the queue, and nobody comes behind it: there is one set of
   pieces and of steps. A call that waits for the others, as in MPI's blocking ones, first ends all that are in the queue.

   A wait that TRIES ends where others have not come, and one that is PATIENT has no time limit. Whoever comes again goes
   on where it ended. A short call needs nobody once it has come: its data lie there, and others take them. */
#include "node.h"

static int is_first_or_fits(const struct node *n, const struct request *l) {
  const struct request *first = n->first;
  if (l == first) return 1;
  return !call_is_long(n, &first->call) && !call_is_long(n, &l->call) && n->last + 1 < first->number + NODE_PENDING;
}

static int come(struct node *n, struct request *l) {
  if (node_enter_request(n, l->call.signature)) return -1;
  l->number = n->calls;
  if (!l->call.verb) return node_pass(n), 0;
  if (call_is_long(n, &l->call)) {
    long_come(&l->steps, n, &l->call);
  } else {
    call_lay(n, &l->call);
    node_arrive(n);
  }
  return node_compare(n);
}

/* Whether a call has failed that could not go on; else it may later. */
static int fails(struct node *n, struct request *l) {
  if (n->is_late) return 0;
  if (l->number && call_is_long(n, &l->call)) long_give_up(n);
  return l->has_failed = 1;
}

/* Tell others whether some call has not come: of a rank that has logged a later one, they so know that it is not elsewhere.
   Stored after the arrivals, and before what is logged next. */
static void note_queued(struct node *n) {
  const uint64_t is_queued = n->first && !n->end->number && !n->end->has_failed;
  if (n->place && node_peek(&node_mine(n)->status.queued) != is_queued) node_post(&node_mine(n)->status.queued, is_queued);
}

static void begin(struct node *n, int patience) { n->is_carrying = 1, n->patience = patience, n->is_late = 0; }
static void end(struct node *n) {
  n->is_carrying = n->patience = n->is_late = 0, n->calls = n->last;
  note_queued(n);
}

/* Come to all calls to which we may by now; NULL, or one that has failed. */
struct request *request_enter(struct node *n) {
  struct request *l = n->first, *failed = NULL;
  begin(n, TRIES);
  for (; l && !failed && (l->number || l->has_failed || is_first_or_fits(n, l)); l = l->next)
    if (!l->number && !l->has_failed && come(n, l)) {
      if (!fails(n, l)) break;
      failed = l;
    }
  end(n);
  return failed;
}

void request_begin(struct node *n, struct request *l) {
  l->next = NULL;
  if (n->first)
    n->end->next = l;
  else
    n->first = l;
  n->end = l;
  note_queued(n);
}

static void go_back_to(struct node *n, const struct request *l) {
  n->calls = n->awaited = l->number;
  n->signature = l->call.signature;
  n->arrival = NODE_ARRIVAL(l->number, NODE_ARRIVED);
}

static int carry_out(struct node *n, struct request *l) {
  if (!l->number && come(n, l)) return -1;
  if (!l->call.verb) return 0;
  go_back_to(n, l);
  if (call_is_long(n, &l->call)) return long_go_on(&l->steps);
  if (call_wait(n, &l->call)) return -1;
  call_take(n, &l->call);
  return 0;
}

/* Move the first call on; it, if it has ended, and is in the queue no more. */
struct request *request_move(struct node *n, int patience) {
  struct request *l = n->first;
  begin(n, patience);
  const int ends = l->has_failed || !carry_out(n, l) || fails(n, l);
  if (ends) n->first = l->next;
  end(n);
  return ends ? l : NULL;
}

/* Let the host look whether those live for whom the first call waits, or say that it is late; -1: it cannot go on. */
int request_look(struct node *n, int why) {
  struct request *l = n->first;
  if (!l || !l->number) return 0;
  begin(n, 0);
  go_back_to(n, l);
  const int bad = n->host->look(n, why, n->late_for);
  l->has_failed |= bad && why == WHY_WAITS && !n->is_late;
  end(n);
  return bad;
}
