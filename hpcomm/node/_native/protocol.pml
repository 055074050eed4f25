/* protocol.pml: the arrivals of one rank after another call, as arrive.c makes them, for SPIN.

   spin -a -DP=3 -DCALLS=3 -DCELLS=2 protocol.pml && gcc -O2 -DVECTORSZ=2048 -o pan pan.c && ./pan -m100000

   Every rank makes CALLS calls. Each may wait for all (a meeting, which any rank may withdraw from when its time is
   over: that is chosen freely), or, where SYNC is 0, for nobody (a broadcast's root). Where PENDING is more than 1, any of
   them may be in the background: a rank comes to PENDING of these before it has left the first (request.c). Numbers go
   from 0 to 4 * CELLS - 1.
   Checked: a cell is not written while anybody may read its data; a signature is taken for that of its own call only; of
   each meeting with deadlines either all pass or none; nobody waits for ever (no invalid end state). */
#ifndef P
#define P 2
#endif
#ifndef CALLS
#define CALLS 3
#endif
#ifndef SYNC
#define SYNC 1
#endif
#ifndef CELLS
#define CELLS 3
#endif
#ifndef PENDING
#define PENDING 1
#endif
#define ARRIVED 0
#define DOUBTS 1
#define WITHDRAWN 2
#define NUMBER(k) ((k) % (4 * CELLS))
#define BEHIND(number, k) ((NUMBER((number) + 4 * CELLS - NUMBER(k))) >= 2 * CELLS)
#define LAP(k) (((k) / CELLS) & 1)

typedef rank_t {
  byte number[CELLS]; /* of the arrival in each cell, */
  byte state[CELLS];
  byte data[CELLS];  /* the call whose data lie there, */
  byte signature[CELLS]; /* and whose signature */
  byte reads[CELLS]; /* others that are in a call which reads this cell */
};
rank_t rank[P];
byte passed[CALLS + 1];
byte failed[CALLS + 1];

inline wait_for_all_at(k) { /* others have come to call k, whether or not they have withdrawn */
  q = 0;
  do
  :: q < P ->
     if
     :: q == me -> q++
     :: q != me ->
        !BEHIND(rank[q].number[(k) % CELLS], k);
        d_step { /* they compare signatures: is it call k's? */
          assert(LAP(rank[q].signature[(k) % CELLS]) != LAP(k) || rank[q].signature[(k) % CELLS] == (k));
          q++ }
     fi
  :: q == P -> break
  od;
  seen = k
}

/* DOUBTS, look, and WITHDRAWN or ARRIVED again; each store and load is a step of its own */
inline withdraw(k) {
  rank[me].state[(k) % CELLS] = DOUBTS;
  missing = 0;
  r = 0;
  do
  :: r < P ->
     if
     :: BEHIND(rank[r].number[(k) % CELLS], k) -> missing = 1
     :: else
     fi;
     r++
  :: r == P -> break
  od;
  if
  :: missing -> rank[me].state[(k) % CELLS] = WITHDRAWN
  :: else -> rank[me].state[(k) % CELLS] = ARRIVED
  fi
}

proctype node(byte me) {
  byte k, first, q, r, seen, published, pass, missing, bad, late; /* calls from first to k - 1 are under way */
  k = 1;
  first = 1;
  do
  :: first > CALLS -> break
  :: k <= CALLS && k < first + PENDING ->
     bad = 0;
     /* node_enter: make good for earlier calls; a call may fail here, before it was come to */
     do
     :: published == k -> break
     :: published < k ->
        if
        :: seen + CELLS < published + 1 + PENDING ->
           if
           :: wait_for_all_at(published + 1 + PENDING - CELLS)
           :: SYNC && first == k && k < CALLS -> bad = 1; break /* its time is over; the last call has no end, so that all end */
           fi
        :: else
        fi;
        published++;
        if
        :: published < k ->
           assert(rank[me].reads[published % CELLS] == 0);
           rank[me].signature[published % CELLS] = published;
           atomic { rank[me].number[published % CELLS] = NUMBER(published); rank[me].state[published % CELLS] = WITHDRAWN }
        :: else
        fi
     od;
     if
     :: bad -> atomic { failed[k]++; k++; first = k }
     :: else ->
        assert(rank[me].reads[k % CELLS] == 0); /* nobody still reads what stood here */
        rank[me].data[k % CELLS] = k;
        rank[me].signature[k % CELLS] = k;
        atomic { rank[me].number[k % CELLS] = NUMBER(k); rank[me].state[k % CELLS] = ARRIVED; k++ }
     fi
  :: first < k && !SYNC -> atomic { passed[first]++; first++ } /* waits for nobody */
  :: first < k ->
     late = 0;
     pass = 0;
     bad = 0;
     do
     :: pass == (P > 2 -> 2 : 1) || bad -> break
     :: else ->
        q = 0;
        do
        :: q == P || bad -> break
        :: else ->
           if
           :: q == me -> q++
           :: q != me && rank[q].number[first % CELLS] == NUMBER(first) && rank[q].state[first % CELLS] == ARRIVED -> q++
           :: q != me && rank[q].number[first % CELLS] == NUMBER(first) && rank[q].state[first % CELLS] == WITHDRAWN ->
              withdraw(first); bad = 1
           :: q != me && SYNC && !late && !(rank[q].number[first % CELLS] == NUMBER(first) && rank[q].state[first % CELLS] == ARRIVED) ->
              withdraw(first); /* its time is over */
              if
              :: missing -> bad = 1
              :: else -> late = 1
              fi
           fi
        od;
        pass++
     od;
     if
     :: bad -> failed[first]++
     :: else ->
        seen = (seen < first -> first : seen);
        q = 0;
        do /* read what the others brought */
        :: q < P ->
           if
           :: q != me -> rank[q].reads[first % CELLS]++; assert(rank[q].data[first % CELLS] == first && rank[q].signature[first % CELLS] == first); rank[q].reads[first % CELLS]--
           :: else
           fi;
           q++
        :: q == P -> break
        od;
        passed[first]++
     fi;
     first++
  od
}

init {
  byte i;
  atomic { i = 0; do :: i < P -> run node(i); i++ :: else -> break od };
  _nr_pr == 1;
  i = 1;
  do
  :: i <= CALLS -> assert(!SYNC || passed[i] == 0 || passed[i] == P); i++
  :: else -> break
  od
}
