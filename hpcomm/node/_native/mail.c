/* mail.c: messages from one rank of a place to another, told apart by source and tag.

        sender                                         receiver
        sends ---> slots of the queue ---> taken in order: for the first receive that it fits
        (no room: they wait here)          \--> none fits: unexpected, copied to memory of our own

   A queue has one writer and one reader. Its slots are always taken in the order in which they were filled, whether or
   not somebody has asked for what they bring. So nobody's message stands before another one that is wanted: two ranks
   may each send any number of messages to the other before they receive one. While a rank waits for a message it moves
   all others, too.

   A message of up to MAIL_EAGER bytes lies in slots, and is complete for its sender when it has been copied there. So does
   a longer one where ranks cannot read each other's memory. Else its slot only says where it lies: the receiver reads it
   there once it is wanted, and stores its ticket in `read`. At most MAIL_LONGS of a queue lie so: else later ones, which
   may be wanted first, would wait for a ticket. They go through slots.

   Whoever waits looks at one word, its own bell. What it waits for is done before the bell is rung:

        waits: sees the bell, moves all it can, and then waits until the bell has another value
        rings: fills slots (the receiver's), has read a message (the sender's),
               has emptied every half a queue (the sender's, who may wait for room)

   A rank that is killed leaves slots that are whole, or not yet counted in `put`. messages.pml is a model of this.

   All functions run with the host's lock held. While a message is read the lock is let go: before, the message is out of
   every list, and afterwards our own bell is rung, for other threads that wait for it. */
#include "node.h"

#include <stdlib.h>

#define LOOK_NS 1000000u
#define HALF (MAIL_SLOTS / 2)

static void append(struct mail_list *list, struct message *m) {
  m->next = NULL;
  if (list->first)
    list->last->next = m;
  else
    list->first = m;
  list->last = m;
}

static void take_out(struct mail_list *list, struct message *m) {
  struct message *before = NULL;
  for (struct message *at = list->first; at != m; at = at->next) before = at;
  if (before)
    before->next = m->next;
  else
    list->first = m->next;
  if (list->last == m) list->last = before;
}

/* The first message of this tag that comes from this rank. */
static struct message *found(const struct mail_list *list, int rank, uint64_t tag) {
  struct message *m = list->first;
  while (m && !(m->tag == tag && !m->into && (m->peer == rank || rank == MAIL_ANYBODY || m->peer == MAIL_ANYBODY)))
    m = m->next;
  return m;
}

static struct node_rank *rank_of(const struct mailbox *b, int rank) { return &b->place->rank[rank]; }

static void ring(const struct mailbox *b, int rank) {
  node_stop_point();
  atomic_fetch_add(&rank_of(b, rank)->mail.bell, 1);
  node_stop_point();
}

static void complete(struct mailbox *b, struct message *m, int state) {
  m->state = state;
  append(&b->over, m);
}

/* -- the sender --------------------------------------------------------------------------------------------------- */
int mail_connect(struct mailbox *b, int dest) {
  struct mail_peer *p = &b->peer[dest];
  uint64_t units;
  if (p->out) return 1;
  struct mail_queue *q = segment_reserve(b->segment, (struct parts){.head = sizeof *q}, &units);
  if (!q) return 0;
  memset(q, 0, offsetof(struct mail_queue, slot));
  q->from = (uint64_t)b->rank;
  q->units = units;
  node_word *inbox = &rank_of(b, dest)->mail.inbox;
  uint64_t before = node_load(inbox), ours = (uint64_t)((char *)q - (char *)b->segment->head);
  node_stop_point();
  do q->next = before;
  while (!atomic_compare_exchange_strong(inbox, &before, ours));
  node_stop_point();
  p->out = q;
  return 1;
}

static uint64_t room(const struct mail_queue *q) { return MAIL_SLOTS - (node_peek(&q->put) - node_load(&q->taken)); }

/* Fill one slot; 1: it was the last one of this message. */
static int fill(struct mail_queue *q, struct message *m) {
  const uint64_t put = node_peek(&q->put), left = m->nbytes - m->moved;
  struct mail_slot *slot = &q->slot[put % MAIL_SLOTS];
  const size_t nbytes = m->there ? 0 : left < MAIL_DATA ? left : MAIL_DATA;
  slot->tag = m->tag;
  slot->nbytes = m->nbytes;
  slot->at = m->there;
  slot->ticket = m->ticket;
  if (nbytes) memcpy(slot->data, m->at + m->moved, nbytes);
  m->moved += nbytes;
  node_post(&q->put, put + 1);
  return m->there || m->moved == m->nbytes;
}

static int has_ticket(const struct mail_peer *p) {
  const uint64_t next = p->longs + 1;
  return (int64_t)(node_load(&p->out->read[next % MAIL_LONGS]) - (next - MAIL_LONGS)) >= 0;
}

/* Fill what slots there are with what is to go to this rank. */
static void send_some(struct mailbox *b, int dest) {
  struct mail_peer *p = &b->peer[dest];
  int filled = 0;
  for (struct message *m; (m = p->sends.first) && room(p->out);) {
    if (!has_ticket(p)) m->there = 0;
    if (m->there) m->ticket = ++p->longs;
    filled = 1;
    if (!fill(p->out, m)) continue;
    take_out(&p->sends, m);
    if (m->there)
      append(&p->lying, m);
    else
      complete(b, m, MAIL_DONE);
  }
  if (filled) ring(b, dest);
}

/* What was read where it lies is complete. */
static void look_at_lying(struct mailbox *b, struct mail_peer *p) {
  for (struct message *m = p->lying.first, *next; m; m = next) {
    next = m->next;
    if (node_load(&p->out->read[m->ticket % MAIL_LONGS]) < m->ticket) continue;
    take_out(&p->lying, m);
    complete(b, m, MAIL_DONE);
  }
}

int mail_send_now(struct mailbox *b, int dest, uint64_t tag, const char *at, uint64_t nbytes) {
  struct mail_peer *p = &b->peer[dest];
  struct message m = {.at = (char *)(uintptr_t)at, .nbytes = nbytes, .tag = tag};
  if (p->sends.first || nbytes > MAIL_EAGER || room(p->out) < nbytes / MAIL_DATA + 1) return 0;
  while (!fill(p->out, &m)) continue;
  ring(b, dest);
  return 1;
}

void mail_send(struct mailbox *b, struct message *m) {
  if (m->nbytes > MAIL_EAGER && b->direct && direct_is_reached(m->at, m->nbytes)) m->there = (uint64_t)(uintptr_t)m->at;
  append(&b->peer[m->peer].sends, m);
  send_some(b, m->peer);
}

/* -- the receiver ------------------------------------------------------------------------------------------------- */
static void meet_queues(struct mailbox *b) { /* which others have made since */
  const uint64_t newest = node_load(&rank_of(b, b->rank)->mail.inbox);
  for (uint64_t at = newest; at != b->known;) {
    struct mail_queue *q = (struct mail_queue *)((char *)b->segment->head + at);
    b->peer[q->from].in = q;
    at = q->next;
  }
  b->known = newest;
}

/* A receive of a message that lies with its sender: it is in no list. */
static void read_there(struct mailbox *b, struct message *m) {
  const int fits = m->came <= m->nbytes, pid = (int)node_peek(&rank_of(b, m->peer)->status.pid);
  struct node unlocked = {.host = b->host};
  int bad = 0;
  if (fits) {
    b->moving++;
    node_unlock(&unlocked);
    bad = direct_read(pid, m->at, m->there, m->came);
    node_lock(&unlocked);
    b->moving--;
  }
  complete(b, m, !fits ? MAIL_LONGER : bad ? MAIL_LOST : MAIL_DONE);
  node_post(&b->peer[m->peer].in->read[m->ticket % MAIL_LONGS], m->ticket);
  ring(b, m->peer);
  ring(b, b->rank);
}

/* All of a message has come, or where it lies: it is for m, which is in no list. */
static void hand_over(struct mailbox *b, struct message *from, struct message *m) {
  m->peer = from->peer;
  m->came = from->came;
  m->there = from->there;
  m->ticket = from->ticket;
  if (m->there) {
    read_there(b, m);
  } else {
    if (m->came && m->came <= m->nbytes) memcpy(m->at, from->at, m->came);
    complete(b, m, m->came <= m->nbytes ? MAIL_DONE : MAIL_LONGER);
  }
}

/* The message of which this is the first slot: a receive that it is for, which is in no list any more, or one of our own among
   the unexpected; NULL: there is no memory, and the slot stays. */
static struct message *whose(struct mailbox *b, int rank, const struct mail_slot *slot) {
  struct message *m = found(&b->receives, rank, slot->tag);
  if (m) {
    take_out(&b->receives, m);
    m->peer = rank;
  } else {
    const uint64_t nbytes = slot->at ? 0 : slot->nbytes;
    if (nbytes > SIZE_MAX - sizeof *m || !(m = malloc(sizeof *m + nbytes))) return NULL;
    *m = (struct message){.at = (char *)(m + 1), .nbytes = nbytes, .tag = slot->tag, .peer = rank, .is_unexpected = 1};
    append(&b->unexpected, m);
  }
  m->came = slot->nbytes;
  m->there = slot->at;
  m->ticket = slot->ticket;
  return m;
}

static void has_come(struct mailbox *b, struct message *m) { /* all of it, or where it lies */
  if (!m->is_unexpected) {
    if (m->there)
      read_there(b, m);
    else
      complete(b, m, m->came <= m->nbytes ? MAIL_DONE : MAIL_LONGER);
    return;
  }
  m->state = MAIL_DONE;
  if (!m->into) return;
  take_out(&b->unexpected, m);
  hand_over(b, m, m->into);
  free(m);
}

/* Take the next slot of a queue; 0: there is none, or no memory for it. */
static int take_slot(struct mailbox *b, int rank) {
  struct mail_peer *p = &b->peer[rank];
  struct mail_queue *q = p->in;
  const uint64_t taken = node_peek(&q->taken);
  if (node_load(&q->put) == taken) return 0;
  const struct mail_slot *slot = &q->slot[taken % MAIL_SLOTS];
  struct message *m = p->coming ? p->coming : whose(b, rank, slot);
  if (!m) return 0;
  const uint64_t left = m->there ? 0 : m->came - m->moved, nbytes = left < MAIL_DATA ? left : MAIL_DATA;
  if (nbytes && m->came <= m->nbytes) memcpy(m->at + m->moved, slot->data, nbytes);
  m->moved += nbytes;
  const int is_whole = left == nbytes;
  p->coming = is_whole ? NULL : m;
  node_post(&q->taken, taken + 1);
  if ((taken + 1) % HALF == 0) ring(b, rank);
  if (is_whole) has_come(b, m);
  return 1;
}

void mail_receive(struct mailbox *b, struct message *m) {
  struct message *from;
  mail_move(b);
  if (b->place && (from = found(&b->unexpected, m->peer, m->tag))) {
    if (from->state == MAIL_DONE) {
      take_out(&b->unexpected, from);
      hand_over(b, from, m);
      free(from);
    } else {
      m->peer = from->peer; /* as it is known to whoever asks */
      from->into = m;
    }
  } else {
    append(&b->receives, m);
  }
}

/* A message that was coming for a receive goes to the next one that it fits, or is unexpected. */
static void give_to_next(struct mailbox *b, struct message *from) {
  struct message *m = from->into = found(&b->receives, from->peer, from->tag);
  if (!m) return;
  take_out(&b->receives, m);
  m->peer = from->peer;
}

/* The same of one that is being copied to m from the queue's slots: what has come of it moves to memory of our own. */
static int move_away(struct mailbox *b, const struct message *m) {
  if (m->peer == MAIL_ANYBODY || b->peer[m->peer].coming != m || m->came > m->nbytes) return 0;
  struct message *from = malloc(sizeof *from + m->came);
  if (!from) return 0;
  *from = *m;
  from->at = (char *)(from + 1);
  from->nbytes = m->came;
  from->is_unexpected = 1;
  memcpy(from->at, m->at, m->moved);
  append(&b->unexpected, from);
  b->peer[m->peer].coming = from;
  give_to_next(b, from);
  return 1;
}

int mail_take_back(struct mailbox *b, struct message *m) {
  if (!b->place || m->state) return 0;
  struct message *at = b->receives.first, *from = b->unexpected.first;
  while (at && at != m) at = at->next;
  while (from && from->into != m) from = from->next;
  if (at)
    take_out(&b->receives, m);
  else if (from)
    give_to_next(b, from);
  else if (!move_away(b, m))
    return 0;
  complete(b, m, MAIL_BACK);
  ring(b, b->rank); /* other threads that wait for it */
  return 1;
}

/* -- both --------------------------------------------------------------------------------------------------------- */
void mail_move(struct mailbox *b) {
  if (!b->place) return;
  meet_queues(b);
  for (int r = 0; r < b->size; r++) {
    struct mail_peer *p = &b->peer[r];
    while (p->in && take_slot(b, r)) continue;
    if (p->lying.first) look_at_lying(b, p);
    if (p->sends.first) send_some(b, r);
  }
}

/* Wait until a message is complete: 0, or < 0: minus the reason. n is for this wait alone. */
int mail_wait(struct mailbox *b, const struct message *m, struct node *n, double seconds) {
  uint64_t begin = 0, looked = 0;
  for (;;) {
    const node_word *bell = &rank_of(b, b->rank)->mail.bell;
    const uint64_t seen = node_load(bell);
    mail_move(b);
    if (m->state) return 0;
    const uint64_t now = node_now();
    if (!begin) begin = looked = now;
    const double left = seconds - (double)(now - begin) * 1e-9;
    if (left <= 0) return -WHY_LATE;
    if (now - looked > LOOK_NS) { /* the bell is rung all the time */
      looked = now;
      if (n->host->look(n, WHY_WAITS, m->peer)) return -WHY_SAID;
      if (!b->place) return 0;
    }
    n->limit = left;
    const int bad = node_wait(n, bell, NODE_OTHER_VALUE, seen, m->peer);
    if (!b->place) return bad == -WHY_SAID ? bad : 0;
    if (bad && bad != -WHY_LATE) return bad;
  }
}

struct mailbox *mail_open(const struct node *n) {
  struct mailbox *b = calloc(1, sizeof *b + (size_t)n->size * sizeof *b->peer);
  if (!b) return NULL;
  b->segment = n->segment;
  b->place = n->place;
  b->host = n->host;
  b->rank = n->rank;
  b->size = n->size;
  b->direct = n->direct;
  return b;
}

static void lose(struct mailbox *b, struct mail_list *list) {
  for (struct message *m; (m = list->first);) {
    take_out(list, m);
    if (m->into) complete(b, m->into, MAIL_LOST);
    if (m->is_unexpected)
      free(m);
    else
      complete(b, m, MAIL_LOST);
  }
}

void mail_close(struct mailbox *b) {
  for (int r = 0; r < b->size; r++) {
    struct mail_peer *p = &b->peer[r];
    lose(b, &p->sends);
    lose(b, &p->lying);
    if (p->coming && !p->coming->is_unexpected) complete(b, p->coming, MAIL_LOST);
    p->coming = NULL;
  }
  lose(b, &b->receives);
  lose(b, &b->unexpected);
  ring(b, b->rank); /* other threads of ours that wait */
  b->place = NULL;
}
