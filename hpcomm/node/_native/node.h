/* node.h: what the ranks of a node share, and nothing else knows an offset of it.

   A segment is one file of shared memory, mapped by every rank of the node. Its first part says who owns which
   unit of the rest; a run of units is reserved for each communicator (a "place") and for each channel.

     segment   | head, owner[units] |  place  |  pieces of that place  |  place  |  channel  |  free ...

     place     | head | rank 0 | rank 1 | ...                      for as long as the communicator lives

     rank      | status | log | words | put | taken | finished | cell 0 | ... | cell 7 |
                 what it  calls the     steps of long calls   call k uses cell k % 8
                 waits    made  program's
                 for      elsewhere

     cell      | arrival | signature | data ...                    arrival: number of the call and state,
                 8 bytes   8 bytes     8 bytes of data travel         stored last, with release
                                       in the line of the arrival

     pieces    | rank 0: piece 0..R-1, result 0..R-1 | rank 1 ...  reserved at the first long call

     inbox of a rank --> queue of rank 2 --> queue of rank 0       each reserved at the first message of two ranks

     queue     | next, from | put | taken, read | slot 0 | ... | slot MAIL_SLOTS - 1 |
                              the   the receiver's
                              sender's

     slot      | tag | nbytes | at | ticket | data ...             the first one of a message says what it is

   Every word is written by one rank only, but for `left`, `finder`, `inbox`, `bell` and `owner`, which are counted and
   claimed. */
#ifndef HPCOMM_NODE_H
#define HPCOMM_NODE_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* it is included first */
#endif
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define NODE_VERSION 15        /* of this layout and of what Python calls: native.py has the same number */
#define NODE_RANKS 256        /* most ranks of one place */
#define NODE_UNIT (16u << 10) /* what a segment is divided into */
#define NODE_LOG 64           /* calls of a rank in its log, of which the last but one can be looked up */
#define NODE_WORDS 192        /* of a rank, for what the program has to tell of it */
#define NODE_CELLS 8          /* of a rank: it may be four calls ahead of others */
#define NODE_CELL 4224u       /* bytes of a cell: for 4 KiB of data, and some more */
#define NODE_INLINE (NODE_CELL - 16u)
#define NODE_PENDING 4          /* calls in the background of a rank that it has come to and not left */
#define NODE_BACKGROUND (1u << 31) /* of the signature of such a call: BACKGROUND of signature.py */
#define NODE_LINE 64
#define NODE_FOR_EVER 1e18 /* seconds */
#ifndef MAIL_SLOTS
#define MAIL_SLOTS 56 /* of a queue: 64 KiB in all; even */
#endif
#define MAIL_SLOT 1088u
#define MAIL_DATA (MAIL_SLOT - 32u) /* bytes of data in a slot */
#ifndef MAIL_LONGS
#define MAIL_LONGS 32 /* messages of a queue that may lie with their sender at the same time */
#endif
#ifndef MAIL_EAGER
#define MAIL_EAGER (16u << 10) /* bytes of a message up to which it goes through slots, in any case */
#endif
#define NODE_APART 128 /* words of different writers: processors fetch lines in pairs */

typedef _Atomic uint64_t node_word;

/* -- numbers of calls ------------------------------------------------------------------------------------------
   An arrival is number << 2 | state, a step is number << NODE_STEP_BITS | step. Where one number is waited for, a cell holds this
   number, the one before it in this cell, or the one after it: so five bits would do; the tests are also built with five.
   The highest bit of a signature in a cell changes each time the cell is used. */
#ifndef NODE_NUMBER_BITS
#define NODE_NUMBER_BITS 40
#endif
#define NODE_NUMBER(k) ((uint64_t)(k) & ((1ull << NODE_NUMBER_BITS) - 1))
enum { NODE_ARRIVED, NODE_DOUBTS, NODE_WITHDRAWN }; /* states of an arrival */
#define NODE_ARRIVAL(k, state) (NODE_NUMBER(k) << 2 | (state))
#define NODE_LAP(k) ((uint64_t)((k) / NODE_CELLS & 1) << 63)
#define NODE_STEP_BITS 24
#define STEP_GAVE_UP ((1u << NODE_STEP_BITS) - 1) /* the step of a rank that has left a long call by an error, */
#define STEP_GAVE_UP_TWICE (STEP_GAVE_UP - 1)     /* and the long call before it too */
#define NODE_STEP(k, step) (NODE_NUMBER(k) << NODE_STEP_BITS | (step))

/* -- the layout ------------------------------------------------------------------------------------------------ */
struct node_cell {
  _Alignas(NODE_LINE) node_word arrival;
  node_word signature;
  unsigned char data[NODE_INLINE];
};

struct node_rank {
  _Alignas(NODE_APART) struct { /* for others to read: what this rank waits for, and whose memory it has */
    node_word waiting;          /* number of the call in which it has begun to wait slowly; 0: it does not */
    node_word since;            /* ns of CLOCK_MONOTONIC */
    node_word rank;             /* for whom; NODE_RANKS: nobody */
    node_word pid;
    node_word domain;           /* of memory, near which it runs */
    node_word queued;           /* 1: it has begun calls in the background to which it comes later (request.c) */
  } status;
  _Alignas(NODE_APART) struct { /* calls that are carried out elsewhere */
    node_word calls;            /* how many: stored after the signature of the last one */
    node_word signature[NODE_LOG];
  } log;
  _Alignas(NODE_APART) struct { /* messages to this rank */
    node_word inbox;            /* the queue that was made last, or 0 */
    node_word bell;             /* counts what may concern it: see mail.c */
  } mail;
  _Alignas(NODE_APART) node_word words[NODE_WORDS];
  _Alignas(NODE_APART) node_word put;      /* pieces that lie in its pieces */
  _Alignas(NODE_APART) node_word taken;    /* steps whose pieces it has taken or reduced */
  _Alignas(NODE_APART) node_word finished; /* steps whose results it has taken */
  _Alignas(NODE_APART) struct node_cell cell[NODE_CELLS];
};

struct node_place {
  _Alignas(NODE_APART) node_word left; /* ranks that have closed: the last one frees the units */
  node_word size, units;
  node_word finder;              /* rank + 1 of the first one in a long call: it reserves the pieces, and says */
  node_word found;               /* 1 when it knows */
  node_word pieces, piece_units; /* their offset, or NODE_NO_PIECES */
  struct node_rank rank[];
};

struct node_box {                      /* one of the two boxes of a channel */
  _Alignas(NODE_APART) node_word full; /* 0: the sender's; else the receiver's: number << 1 | 1 */
};

struct node_channel {
  _Alignas(NODE_APART) node_word left;
  node_word units, capacity;
  struct node_box box[2]; /* behind them: 2 * capacity bytes */
};

struct mail_slot {
  _Alignas(NODE_LINE) uint64_t tag;
  uint64_t nbytes; /* of the message */
  uint64_t at;     /* where it lies in its sender's memory; 0: here, and in the next slots */
  uint64_t ticket; /* then: what is stored in `read` when it has been read */
  unsigned char data[MAIL_DATA];
};

struct mail_queue {                           /* from one rank to another */
  _Alignas(NODE_APART) uint64_t next;         /* of the receiver's inbox, or 0 */
  uint64_t from, units;
  _Alignas(NODE_APART) node_word put;         /* slots filled */
  _Alignas(NODE_APART) node_word taken;       /* slots emptied */
  node_word read[MAIL_LONGS];                 /* ticket t is read when read[t % MAIL_LONGS] >= t */
  _Alignas(NODE_APART) struct mail_slot slot[MAIL_SLOTS];
};

struct node_head {
  _Alignas(NODE_APART) node_word magic; /* stored last */
  uint64_t version, nbytes, units;
  node_word records, record_words; /* where what ranks tell of themselves begins, for other processes; 0: nowhere yet */
  _Atomic uint32_t owner[];        /* of each unit: 0 free, else taken */
};

#define NODE_NO_PIECES 1 /* there is no room for any */
_Static_assert(sizeof(struct node_cell) == NODE_CELL, "a cell is one block");
_Static_assert(offsetof(struct node_cell, data) == 16, "data begin in the line of the arrival");
_Static_assert(sizeof(struct mail_slot) == MAIL_SLOT, "a slot is one block");

/* -- sizes ------------------------------------------------------------------------------------------------------ */
static inline size_t node_place_bytes(int size) {
  return sizeof(struct node_place) + (size_t)size * sizeof(struct node_rank);
}
static inline int node_ring(int size) { return size <= 16 ? 4 : 2; }
static inline size_t node_chunk(int size) { /* what a rank reduces of one step, at most */
  size_t chunk = (size <= 2 ? 128u << 10 : size <= 16 ? 256u << 10 : 64u << 10) / (unsigned)size;
  return chunk & ~(size_t)(NODE_LINE - 1);
}
static inline size_t node_piece(int size) { return node_chunk(size) * (size_t)size; }
static inline size_t node_pieces_bytes(int size) { /* of one rank */
  return (size_t)node_ring(size) * (node_piece(size) + node_chunk(size));
}

/* -- a segment, a place and a channel as one process sees them ---------------------------------------------------- */
struct segment {
  struct node_head *head;
  size_t nbytes;
  int file;
};

struct node;
struct node_host {      /* the program around the core: Python, or a test */
  void *(*leave)(void); /* let its other threads run; what is returned goes to back */
  void (*back)(void *);
  int (*look)(struct node *, int why, int rank); /* WAITS: 0 goes on; all else, and any other result: the call fails */
};
enum { WHY_WAITS, WHY_MISMATCH, WHY_LATE, WHY_WITHDRAWN, WHY_GAVE_UP, WHY_SAID }; /* SAID: the host has said why */

struct node {
  struct segment *segment;
  struct node_place *place;
  const struct node_host *host;
  void *program; /* the host's */
  void *state;   /* of host->leave; NULL: the host's lock is held */
  int rank, size;
  int spins;                       /* looks before a wait gets slow; 0: more ranks than cores */
  int checks;                      /* compare signatures */
  int synchronous;                 /* every call waits for all, and may be withdrawn */
  double timeout;                  /* seconds; 0: for ever */
  double limit;                    /* of this wait in place of timeout; 0: timeout holds */
  int patience;                    /* of this wait, see request.c: PATIENT, or TRIES: whoever has not come is not waited for */
  int is_late, late_for;           /* a wait has ended so that its call may go on later; for this rank */
  uint64_t most;                   /* bytes of a rank's block, above which module.c takes no call */
  uint64_t calls;                  /* number of the call under way, */
  uint64_t last;                   /* and of the last one that was begun: others before it may be in the background */
  struct request *first, *end;       /* those, in their order, */
  int is_carrying;                 /* and whether the call under way is one of them */
  uint64_t published;              /* last number of which our arrival stands in its cell */
  uint64_t awaited;                /* number to which we wait for others to come; 0: we wait for something else */
  uint64_t seen;                   /* last number to which all others are known to have come */
  uint64_t gave_up;                /* number of the last long call that this rank has left by an error */
  uint64_t theirs;                 /* signature of the call that is another one than ours, for the host */
  uint64_t told;                   /* number of the last call whose mismatch has been reported */
  uint64_t signature;              /* of the call under way */
  uint64_t arrival;                /* of the call under way, as it stands in cells */
  uint64_t pieces;                 /* see node_place; 0: not known yet */
  int has_begun_long;              /* 1: this rank has made a long call */
  int direct;                      /* memory of all others can be read and written: the same on all ranks */
  uint64_t direct_from;            /* bytes from which that is done: see is_direct; the same on all ranks */
  char *scratch;                   /* for what is read so, and reduced */
};

/* Where the elements of an array lie that are not one behind the other, in C order: bytes from each to the next along axes,
   of which the last one is the quickest, and all bytes from the first element: low to high. */
enum { LAYOUT_AXES = 16 };
struct layout {
  int64_t axes, size, low, high; /* axes 0: in order */
  int64_t length[LAYOUT_AXES], step[LAYOUT_AXES];
};

struct call {
  int verb, op, dtype, root;
  size_t count;  /* elements that are compared: of a block where x has one for each rank, else of x */
  size_t nbytes; /* of x; of out where only the root has x */
  int named;       /* elements of another type, of which the bytes go: its number; 0: they are what dtype says */
  size_t compared; /* then: what ranks compare in place of count */
  uint64_t signature;
  const char *x;
  char *out;
  const struct layout *x_lies, *out_lies; /* NULL: in order */
};

struct steps { /* of a long call: how it is cut, and how far it has come */
  struct node *n;
  struct call *c;
  size_t chunk; /* bytes of a step that one rank reduces, or that are for one rank */
  size_t part;  /* bytes of a step: of a block, or of the whole array */
  size_t whole; /* bytes that are cut into parts */
  uint64_t count;
  int is_shared; /* each rank reduces a chunk of a step */
  int is_counted; /* its steps have been, at its arrival */
  int state, stage;
  uint64_t step;
};

struct request { /* a call in the background */
  struct request *next;
  struct call call;
  uint64_t number; /* 0: it has not come to it yet */
  int has_failed;
  struct steps steps;
};

struct channel {
  struct node node; /* for its waits: host, spins */
  struct node_channel *at;
  uint64_t count; /* boxes that went through */
  int peer;       /* rank told to the host */
};

/* A message under way, of which its program has the memory; or one that has come and is not expected yet: then we have. */
struct message {
  struct message *next; /* in the one list in which it is */
  char *at;
  uint64_t nbytes;      /* of the memory */
  uint64_t tag;
  int peer;             /* of a receive: MAIL_ANYBODY until it is known */
  int state;
  uint64_t came;        /* of a receive: how long the message is */
  uint64_t moved;       /* bytes of it that have been copied */
  uint64_t there;       /* not 0: it is read where it lies, in its sender's memory, */
  uint64_t ticket;      /* with this ticket */
  int is_unexpected;
  struct message *into; /* of one that was not expected when it began to come: the receive that it is for */
};
/* states; LONGER than its memory, LOST with its sender, taken BACK */
enum { MAIL_UNDER_WAY, MAIL_DONE, MAIL_LONGER, MAIL_LOST, MAIL_BACK };
enum { MAIL_ANYBODY = -1 };
struct mail_list {
  struct message *first, *last;
};
struct mail_peer { /* what a rank has of another one */
  struct mail_queue *out, *in;
  uint64_t longs;          /* tickets given */
  struct mail_list sends;  /* of which slots are still to be filled, */
  struct mail_list lying;  /* and that lie here until they are read */
  struct message *coming;  /* whose first slots have been taken */
};
struct mailbox { /* of one rank of a place */
  struct segment *segment;
  struct node_place *place; /* NULL: closed */
  const struct node_host *host;
  int rank, size;
  int direct;
  int moving;                            /* messages being copied with the host's lock let go */
  uint64_t known;                        /* inbox, as far as its queues are known */
  struct mail_list receives, unexpected; /* in the order in which they were begun, or came */
  struct mail_list over;                 /* complete, for the host to let go */
  struct mail_peer peer[];
};

/* -- segment.c ---- */
size_t segment_bytes(size_t nbytes);
int segment_open(struct segment *, int file, size_t nbytes, int create); /* 0, or an errno */
void segment_close(struct segment *);
struct parts { /* of memory: behind `head` bytes `size` for each rank, which lie near it */
  size_t head, size;
  int ranks;
  const unsigned char *domains;
};
void *segment_reserve(struct segment *, struct parts, uint64_t *units); /* NULL: no room */
void segment_release(struct segment *, void *at, uint64_t units, int give_back);
struct node_place *node_reserve(struct segment *, int size, const unsigned char *domains); /* NULL: all near one */
struct node_channel *channel_reserve(struct segment *, size_t capacity);
int node_leave(struct segment *, struct node_place *);
int channel_leave(struct segment *, struct node_channel *);

/* -- wait.c ---- */
enum { TRIES = 1, PATIENT };
enum { NODE_AT_CALL, NODE_PAST_CALL, NODE_AT_STEP, NODE_AT_VALUE, NODE_OTHER_VALUE }; /* what a wait waits for */
uint64_t node_now(void);
int node_wait_slowly(struct node *, const node_word *, int how, uint64_t want, int rank);
int node_fail(struct node *, int why, int rank); /* let the host say why, unless it has; -1 */
int node_mismatch(struct node *, int rank, uint64_t number, uint64_t theirs);
int node_unlock(struct node *); /* let other threads of the program run; 1 if they could not before */
void node_lock(struct node *);

/* -- arrive.c ---- */
void node_attach(struct node *, struct segment *, struct node_place *, int rank);
int node_enter(struct node *, uint64_t signature); /* our cell may be written when it returns */
int node_enter_request(struct node *, uint64_t signature); /* the same; if it does not, the call has no number yet */
void node_arrive(struct node *);                   /* waits for nobody */
void node_pass(struct node *);                     /* in place of it: this rank has withdrawn */
int node_wait_for_rank(struct node *, int rank);   /* until it has come to this call */
int node_wait_for_all(struct node *);
int node_arrive_and_wait(struct node *, uint64_t signature, const void *said, size_t nbytes); /* enter, too; for all */
int node_compare(struct node *);
int node_compare_earlier(struct node *);
uint64_t node_log_call(struct node *, uint64_t signature);
int node_logged_call(const struct node *, int rank, uint64_t number, uint64_t *signature); /* 0: none, or gone */
int node_missing(struct node *, unsigned char *which); /* which[r] = 1: has not come to the call awaited */

/* -- reduce.c ---- */
int reduce_knows(int dtype, int op);
void reduce_arrays(int dtype, int op, int divide_by, void *out, const void *const *in, int inputs, size_t count);
void reduce_neutral(int dtype, int op, void *out, size_t count); /* what exscan leaves on rank 0 */
size_t dtype_bytes(int dtype);
void reduce_link(const struct call *, size_t at, char *made, const char *before, size_t count);

/* -- layout.c: bytes at a place of those of x, or of out, in order ---- */
int layout_of(struct layout *, size_t size, int axes, const int64_t *shape, const int64_t *steps); /* 0: it overlaps itself */
int layout_same(const struct layout *, const struct layout *);
void call_read(const struct call *, char *to, size_t at, size_t nbytes);
void call_write(const struct call *, size_t at, const char *from, size_t nbytes);
void call_copy(const struct call *, size_t into, size_t from, size_t nbytes);
void call_lies(const struct call *, struct layout *);

/* -- collective.c, long.c, direct.c, request.c ---- */
enum { NODE_NO_ROOM = -2 };
int node_run(struct node *, struct call *); /* 0, -1: failed, NODE_NO_ROOM: on all ranks alike */
int call_is_long(const struct node *, const struct call *);
void call_sign(struct call *);
void call_lay(struct node *, const struct call *);
int call_wait(struct node *, const struct call *); /* for those of whom it takes something */
void call_take(struct node *, const struct call *);
int long_run(struct node *, struct call *);
int long_find_pieces(struct node *);
void long_come(struct steps *, struct node *, struct call *); /* it has been entered */
int long_go_on(struct steps *); /* again after a wait that may go on later */
int long_wait_for_step(struct node *, const node_word *, uint64_t step, int rank);
int long_afresh(struct node *); /* 0: not before all have come */
void long_count_steps(struct node *);
int long_give_up(struct node *);
int direct_move(struct node *, const struct call *);
int direct_finish(struct node *, const struct call *);
void request_begin(struct node *, struct request *);
struct request *request_enter(struct node *);
struct request *request_move(struct node *, int patience);
int request_look(struct node *, int why);
int direct_pull(struct node *, int rank, char *to, uint64_t from, size_t nbytes);
int direct_read(int pid, char *to, uint64_t from, size_t nbytes);
int direct_is_reached(const char *at, size_t nbytes);
int direct_reaches_process(int pid, uint64_t at, uint64_t token);
int direct_may(struct node *, const struct call *);
enum { CALL_X, CALL_OUT, CALL_NBYTES, CALL_WORDS }; /* where x and out are; bytes << 1 | others may reach them; then how they lie */
uint64_t direct_address(const struct node *, int rank, int which);
int call_gives(const struct node *, const struct call *); /* others need of this rank's x */
int call_arrive_and_wait(struct node *, const struct call *);

/* -- share.c ---- */
struct node_part {
  uint64_t at, nbytes;
};
/* Where the program wants a block of a rank's: NULL: the call fails. is_short: it lies here, and not in the giver's memory. */
typedef char *share_memory(void *program, int rank, size_t block, size_t nbytes, int is_short);
int share_run(struct node *, const struct call *, const struct node_part *blocks, const size_t *counts, share_memory *,
              void *program); /* as node_run; counts[i] of the blocks are for rank i, or i is 0 and they are for all */

/* -- channel.c ---- */
void channel_attach(struct channel *, struct segment *, struct node_channel *, int peer);
char *channel_box(struct channel *, int to_fill);   /* NULL: the wait failed */
char *channel_ready(struct channel *, int to_fill); /* the same, NULL where one would wait */
void channel_fill(struct channel *);
void channel_free(struct channel *);

/* -- mail.c ---- */
struct mailbox *mail_open(const struct node *); /* NULL: no memory */
void mail_close(struct mailbox *);              /* what is under way is lost, and over */
int mail_connect(struct mailbox *, int dest);   /* before the first message to it; 0: no room */
int mail_send_now(struct mailbox *, int dest, uint64_t tag, const char *at, uint64_t nbytes); /* 0: not at once */
void mail_send(struct mailbox *, struct message *);
void mail_receive(struct mailbox *, struct message *);
int mail_take_back(struct mailbox *, struct message *); /* 0: that receive is complete, or will be */
void mail_move(struct mailbox *);               /* all that can be moved */
int mail_wait(struct mailbox *, const struct message *, struct node *, double seconds);

/* -- verbs, operators, element types: the numbers of hpcomm's signatures. Those of element types are positions in
   core/dtypes.py ---- */
#include "verbs.h"
static inline int verb_is(int verb, unsigned set) { return set >> verb & 1; } /* in a set of verbs.h */
enum { OP_SUM, OP_AVG, OP_PROD, OP_MIN, OP_MAX, OP_BAND, OP_BOR, OP_BXOR, OP_LAND, OP_LOR, OPS };
enum { BOOL = 1, I8, I16, I32, I64, U8, U16, U32, U64, F16, BF16, F32, F64, LONG_DOUBLE, C64, C128, DTYPES };

/* Who has what in a call: an x of which something goes to somebody, an out; whether something of x goes from one to the
   other; and where that begins in the x of the one, in the out of the other. */
static inline int call_has_x(const struct call *c, int rank) {
  return !verb_is(c->verb, ROOT_SENDS) || rank == c->root;
}
static inline int call_has_out(const struct call *c, int rank) {
  return !verb_is(c->verb, ROOT_RECEIVES) || rank == c->root;
}
static inline int call_goes(const struct call *c, int from, int to) {
  if (verb_is(c->verb, PREFIXES)) return from < to || (from == to && c->verb == BY_SCAN);
  return call_has_x(c, from) && call_has_out(c, to);
}
static inline size_t call_block(const struct call *c, int ranks) { /* bytes that go from one rank to another */
  return c->verb == BY_REDUCE_SCATTER || c->verb == BY_ALL_TO_ALL ? c->nbytes / (size_t)ranks : c->nbytes;
}
static inline size_t call_from(const struct call *c, int ranks, int to) {
  return verb_is(c->verb, INPUT_BLOCKS) ? (size_t)to * call_block(c, ranks) : 0;
}
static inline size_t call_into(const struct call *c, int ranks, int from) {
  return verb_is(c->verb, OUTPUT_BLOCKS) ? (size_t)from * call_block(c, ranks) : 0;
}

/* -- short words ------------------------------------------------------------------------------------------------- */
#if defined(__x86_64__)
#define node_relax() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define node_relax() __asm__ volatile("isb")
#else
#define node_relax() ((void)0)
#endif
static inline uint64_t node_load(const node_word *at) {
  return atomic_load_explicit((node_word *)at, memory_order_acquire);
}
static inline uint64_t node_peek(const node_word *at) {
  return atomic_load_explicit((node_word *)at, memory_order_relaxed);
}
static inline void node_note(node_word *at, uint64_t value) { atomic_store_explicit(at, value, memory_order_relaxed); }
#ifdef NODE_STOPS
void node_stop_point(void); /* the tests end or stop a rank at its n-th store */
#else
#define node_stop_point() ((void)0)
#endif
static inline void node_post(node_word *at, uint64_t value) { /* whoever sees it sees all that we wrote before */
  node_stop_point();
  atomic_store_explicit(at, value, memory_order_release);
  node_stop_point();
}
static inline struct node_rank *node_mine(const struct node *n) { return &n->place->rank[n->rank]; }
static inline struct node_cell *node_cell(const struct node *n, int rank, uint64_t number) {
  return &n->place->rank[rank].cell[number % NODE_CELLS];
}
/* Of this call of the rank, which stands in a cell of it; 0: another call's does, or it was never made. */
static inline uint64_t node_signature(const struct node *n, int rank, uint64_t number) {
  uint64_t signature = node_peek(&node_cell(n, rank, number)->signature) ^ NODE_LAP(number);
  return signature >> 63 ? 0 : signature;
}
static inline char *node_piece_at(const struct node *n, int rank, uint64_t step) {
  size_t ring = (size_t)node_ring(n->size);
  return (char *)n->segment->head + n->pieces + (size_t)rank * node_pieces_bytes(n->size) +
         step % ring * node_piece(n->size);
}
static inline char *node_result_at(const struct node *n, int rank, uint64_t step) {
  size_t ring = (size_t)node_ring(n->size);
  return node_piece_at(n, rank, 0) + ring * node_piece(n->size) + step % ring * node_chunk(n->size);
}

/* An arrival at an earlier call than this. */
static inline int node_is_behind(uint64_t arrival, uint64_t number) {
  return (int64_t)(((arrival >> 2) - number) << (64 - NODE_NUMBER_BITS)) < 0;
}
/* Whether what was seen is what was waited for: 1 yes, 0 not yet, < 0: it will never be (minus the reason). */
static inline int node_holds(int how, uint64_t seen, uint64_t want) {
  const int unused = 64 - NODE_STEP_BITS - NODE_NUMBER_BITS; /* bits of a step's word */
  switch (how) {
    case NODE_AT_CALL:
      if (seen == want) return 1;
      return seen == (want | NODE_WITHDRAWN) ? -WHY_WITHDRAWN : 0;
    case NODE_PAST_CALL: return !node_is_behind(seen, want >> 2);
    case NODE_AT_STEP:
      if ((int64_t)((seen - want) << unused) < 0) return 0;
      if ((seen & STEP_GAVE_UP) < STEP_GAVE_UP_TWICE) return 1;
      return seen >> NODE_STEP_BITS == want >> NODE_STEP_BITS || (seen & STEP_GAVE_UP) == STEP_GAVE_UP_TWICE
                 ? -WHY_GAVE_UP
                 : 1;
    case NODE_OTHER_VALUE: return seen != want;
    default: return seen == want;
  }
}
/* Wait until the word holds; 0, or < 0: minus the reason. */
static inline int node_wait(struct node *n, const node_word *at, int how, uint64_t want, int rank) {
  for (int i = n->patience == TRIES ? 0 : n->spins; i >= 0; i--) {
    int holds = node_holds(how, node_load(at), want);
    if (holds) return holds > 0 ? 0 : holds;
    node_relax();
  }
  return node_wait_slowly(n, at, how, want, rank);
}
/* The same; -1: the call has failed. */
static inline int node_await(struct node *n, const node_word *at, int how, uint64_t want, int rank) {
  const int bad = node_wait(n, at, how, want, rank);
  return bad ? node_fail(n, -bad, rank) : 0;
}
#endif
