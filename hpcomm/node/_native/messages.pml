/* messages.pml: the messages of ranks to one another, as mail.c moves them, for SPIN.

   spin -a -DP=2 -DM=3 messages.pml && gcc -O2 -o pan pan.c && ./pan -m1000000

   Every rank sends M messages to every other one (to rank 0 only, with ONE_WAY): in one slot, in two, or lying in its
   own memory, where only one of a queue may lie at a time: another one goes in two slots. It waits until each is in slots before it begins the next (as `send` does), or not (WAITS 0: as `isend`).
   Then it receives: those with tag 1 first, from whomever, then those with tag 0, and at last waits for its own.
   Each load and store of what ranks share is a step of its own.
   Checked: slots are read as they were written, and in this order; a message that lies with its sender is read while it
   lies there; each is received once; nobody waits for ever (no invalid end state). */
#ifndef P
#define P 2
#endif
#ifndef M
#define M 3
#endif
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef WAITS
#define WAITS 1
#endif
#ifndef ONE_WAY
#define ONE_WAY 0
#endif
#define HALF (SLOTS / 2)
#define IS_LONG(m) ((m) % 3 == 2)
#define SLOTS_OF(m, lies) ((m) % 3 == 1 || (IS_LONG(m) && !(lies)) -> 2 : 1)
#define TAG(m) ((m) % 2)
#define SENDS(from, to) ((from) != (to) && (!ONE_WAY || (to) == 0))
#define TO_ME (ONE_WAY && me != 0 -> 0 : (P - 1) * M)
#define OUT queue[me * P + r]
#define IN queue[r * P + me]

typedef queue_t {
  byte put, taken, read;
  byte slot[SLOTS]; /* the number of what was written, */
  byte ticket[SLOTS]; /* and of a message that lies with its sender */
  byte lies[M] /* its ticket, while it may be read */
};
queue_t queue[P * P];
byte bell[P];
byte ended;

inline move() {
  r = 0;
  do
  :: r == P -> break
  :: r < P ->
     do /* take all that has come */
     :: !SENDS(r, me) || IN.put == taken[r] -> break
     :: SENDS(r, me) && IN.put != taken[r] ->
        atomic {
          assert(IN.slot[taken[r] % SLOTS] == taken[r]);
          if
          :: parts[r] == 0 -> tickets[r * M + coming[r]] = IN.ticket[taken[r] % SLOTS]
          :: else
          fi
        }
        IN.taken = taken[r] + 1;
        atomic {
          taken[r]++;
          parts[r]++;
          if
          :: parts[r] == SLOTS_OF(coming[r], tickets[r * M + coming[r]]) ->
             parts[r] = 0; come[r * M + coming[r]] = 1; coming[r]++
          :: else
          fi
        }
        if
        :: taken[r] % HALF == 0 -> bell[r]++
        :: else
        fi
     od;
     if /* what lay here is read */
     :: SENDS(me, r) && lying[r] && OUT.read == longs[r] ->
        atomic { lying[r]--; OUT.lies[lying[r]] = 0; lying[r] = 0 }
     :: else
     fi;
     filled = 0;
     do /* fill what slots there are */
     :: SENDS(me, r) && first[r] < begun && OUT.put - OUT.taken < SLOTS ->
        ticket = 0;
        if
        :: IS_LONG(first[r]) && laid[r] == 0 && OUT.read == longs[r] ->
           atomic { longs[r]++; ticket = longs[r]; OUT.lies[first[r]] = ticket; lying[r] = first[r] + 1 }
        :: else
        fi;
        atomic { OUT.slot[OUT.put % SLOTS] = OUT.put; OUT.ticket[OUT.put % SLOTS] = ticket };
        OUT.put++;
        atomic {
          filled = 1;
          laid[r]++;
          if
          :: laid[r] == SLOTS_OF(first[r], ticket) -> laid[r] = 0; first[r]++
          :: else
          fi
        }
     :: else -> break
     od;
     if
     :: filled -> bell[r]++
     :: else
     fi;
     r++
  od
}

/* The first message of this tag, from whomever, if one has come. */
inline receive(tag) {
  r = 0;
  do
  :: r == P -> break
  :: r < P ->
     m = 0;
     do
     :: m == M || (come[r * M + m] == 1 && TAG(m) == tag) -> break
     :: else -> m++
     od;
     if
     :: m < M ->
        come[r * M + m] = 2;
        received++;
        if
        :: tickets[r * M + m] ->
           assert(IN.lies[m] == tickets[r * M + m]);
           IN.read = tickets[r * M + m];
           bell[r]++
        :: else
        fi
     :: else
     fi;
     r++
  od
}

inline all_filled() {
  all = 1;
  r = 0;
  do
  :: r == P -> break
  :: else ->
     if
     :: SENDS(me, r) && (first[r] < begun || (begun == M && received == TO_ME && lying[r])) -> all = 0
     :: else
     fi;
     r++
  od
}

proctype node(byte me) {
  byte r, m, seen, begun, filled, received, all, before, ticket;
  byte taken[P], parts[P], coming[P], first[P], laid[P], longs[P], lying[P];
  byte come[P * M], tickets[P * M];
  do
  :: begun == M -> break
  :: begun < M ->
     begun = (WAITS -> begun + 1 : M);
     do
     :: seen = bell[me];
        move();
        atomic { all_filled() }
        if
        :: all || !WAITS || IS_LONG(begun - 1) -> break
        :: else -> bell[me] != seen
        fi
     od
  od;
  do
  :: received == TO_ME -> break
  :: received < TO_ME ->
     do
     :: seen = bell[me];
        move();
        before = received;
        if
        :: received < (P - 1) * (M / 2) -> receive(1)
        :: else -> receive(0)
        fi;
        if
        :: received > before -> break
        :: else -> bell[me] != seen
        fi
     od
  od;
  do
  :: seen = bell[me];
     move();
     atomic { all_filled() }
     if
     :: all -> break
     :: else -> bell[me] != seen
     fi
  od;
  ended++
}

init {
  byte i;
  atomic { i = 0; do :: i < P -> run node(i); i++ :: else -> break od };
  _nr_pr == 1;
  assert(ended == P)
}
