/* module.c: hpcomm.node._native.core, the core as Python sees it. README.md tells what the methods mean.

   A method looks at its arrays, runs the call, and returns the result, or NotImplemented where the core does not take
   such arrays: before any other rank could know of the call, so Python may prepare others and come again. */
#include "module.h"

#include <pthread.h>
#include <stdlib.h>
#include <structmember.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DIRECT_FROM (4u << 20)

PyTypeObject *segment_type;
int node_forks;
static void forked(void) { node_forks++; }

/* -- the host: what waits and fails ------------------------------------------------------------------------------ */
static void *leave(void) { return PyEval_SaveThread(); }
static void back(void *state) { PyEval_RestoreThread(state); }

static PyObject *ranks_of(struct node *n, int rank) { /* who has not come, or for whom we wait */
  unsigned char which[NODE_RANKS];
  int missing = n->place && n->awaited ? node_missing(n, which) : 0;
  if (!missing) return rank < 0 ? PyTuple_New(0) : Py_BuildValue("(i)", rank);
  PyObject *ranks = PyTuple_New(missing);
  for (int r = 0, i = 0; ranks && r < n->size; r++)
    if (which[r]) PyTuple_SetItem(ranks, i++, PyLong_FromLong(r));
  return ranks;
}

static int look(struct node *n, int why, int rank) {
  static const char *const reasons[] = {"waits", "mismatch", "late", "withdrawn", "gave up"};
  const char *const reason = why == WHY_WAITS && !n->place ? "message" : reasons[why];
  PyObject *hook = n->program, *ranks, *said;
  if (why == WHY_WAITS && PyErr_CheckSignals()) return n->is_late = n->is_carrying, -1;
  if (why == WHY_WAITS && !hook) return 0;
  const uint64_t number = n->awaited ? n->awaited : n->calls, theirs = why == WHY_MISMATCH ? n->theirs : 0;
  const uint64_t ours = why == WHY_MISMATCH ? node_signature(n, n->rank, number) : n->signature;
  ranks = why == WHY_WAITS || why == WHY_LATE ? ranks_of(n, rank) : Py_BuildValue("(i)", rank);
  if (!ranks) return -1;
  said = hook ? PyObject_CallFunction(hook, "sOKK", reason, ranks, (unsigned long long)ours,
                                      (unsigned long long)theirs)
              : Py_NewRef(Py_None);
  if (said && why != WHY_WAITS) {
    PyObject *kind = why == WHY_LATE       ? PyExc_TimeoutError
                     : why == WHY_MISMATCH ? PyExc_ValueError
                                            : PyExc_ConnectionError;
    PyErr_Format(kind, "call %llu %s: rank(s) %R; signature here %llu, there %llu", (unsigned long long)number,
                 reason, ranks, (unsigned long long)ours, (unsigned long long)theirs);
  }
  Py_DECREF(ranks);
  Py_XDECREF(said);
  if (!PyErr_Occurred()) return 0;
  if (!PyErr_ExceptionMatches(PyExc_Exception)) n->is_late = n->is_carrying; /* as Ctrl-C: what it was in may go on */
  return -1;
}
const struct node_host python_host = {leave, back, look};

/* -- calls --------------------------------------------------------------------------------------------------------- */
static const char *const op_names[OPS] = {"sum", "avg", "prod", "min", "max", "band", "bor", "bxor", "land", "lor"};
static PyObject *op_words[OPS]; /* interned */
static const char *const verb_names[] = {VERB_NAMES};
PyObject *verb_words[VERBS];

static int op_of(PyObject *word) { /* -1: none of ours */
  for (int i = 0; i < OPS; i++)
    if (word == op_words[i]) return i;
  for (int i = 0; i < OPS && PyUnicode_Check(word); i++)
    if (!PyUnicode_CompareWithASCIIString(word, op_names[i])) return i;
  return -1;
}

static char *end_of(const struct array *a, int is_last) {
  return a->at + (a->lies.axes ? is_last ? a->lies.high : a->lies.low : is_last ? (int64_t)a->nbytes : 0);
}

/* Memory that x and out have in common is a rank's own block of the longer one, or all of both. */
static int may_share(const struct call *c, const struct array *x, const struct array *out, size_t rank) {
  if (end_of(x, 1) <= end_of(out, 0) || end_of(out, 1) <= end_of(x, 0)) return 1;
  if (x->lies.axes || out->lies.axes) return x == out;
  switch (c->verb) {
    case BY_GATHER:
    case BY_ALL_GATHER: return x->at == out->at + rank * x->nbytes;
    case BY_SCATTER: return out->at == x->at + rank * out->nbytes;
    default: return x->at == out->at && x->nbytes == out->nbytes;
  }
}

/* The shape of the result for this x. has_out: then blocks may also lie one after the other along the first axis. */
static int shape_of_result(int verb, const struct array *x, int64_t ranks, int has_out, int64_t *shape) {
  const int cut = verb_is(verb, INPUT_BLOCKS), is_stacked = cut && x->axes && x->shape[0] == ranks;
  int axes = 0;
  if (cut && !is_stacked && (!has_out || !x->axes || x->shape[0] % ranks)) return -1;
  if (verb_is(verb, GATHERING)) shape[axes++] = ranks;
  for (int i = is_stacked && verb_is(verb, SCATTERING); i < x->axes; i++) shape[axes++] = x->shape[i];
  if (!is_stacked && verb_is(verb, SCATTERING)) shape[0] /= ranks;
  return axes;
}

/* Whether out has it, or that of the blocks one after the other. */
static int has_shape(int verb, const struct array *out, int axes, const int64_t *shape) {
  const size_t rest = sizeof *shape;
  if (out->axes == axes && !memcmp(out->shape, shape, (size_t)axes * rest)) return 1;
  if (verb_is(verb, GATHERING) && axes >= 2)
    return out->axes == axes - 1 && out->shape[0] == shape[0] * shape[1] &&
           !memcmp(out->shape + 1, shape + 2, (size_t)(axes - 2) * rest);
  return verb_is(verb, SCATTERING) && out->axes == axes + 1 && out->shape[0] == 1 &&
         !memcmp(out->shape + 1, shape, (size_t)axes * rest);
}

static int look_at(PyObject *object, int writable, uint64_t as, struct array *a) {
  int takes = array_look_any(object, writable, a);
  return takes == 1 ? !as || array_as(a, (int)as) : takes;
}

/* What the call means for this rank: 1; 0: nothing that the core could do. */
static int say(const struct node *n, const struct arguments *g, struct call *c) {
  if (g->op && (c->op = op_of(g->op)) < 0) return 0;
  if (!g->root) return 1;
  if (!PyLong_CheckExact(g->root)) return 0;
  int overflow;
  long root = PyLong_AsLongAndOverflow(g->root, &overflow);
  c->root = (int)root;
  return !overflow && root >= 0 && root < n->size;
}

/* Whether out has as many bytes as the result: with dtype=, the arrays may have been of other types. */
static int has_room(int verb, const struct array *x, const struct array *out, size_t ranks) {
  const size_t cut = verb_is(verb, SCATTERING) ? ranks : 1;
  return out->dtype == x->dtype && out->nbytes * cut == x->nbytes * (verb_is(verb, GATHERING) ? ranks : 1);
}

/* Fill in what the arrays say, as prepare.py does, and make the result. 1: the core takes them; 0: not; -1: an
   exception. *result: new, NULL where this rank receives nothing. */
int prepare_call(Node *self, const struct arguments *g, int later, struct call *c, struct array *x, struct array *out,
                 PyObject **result) {
  const struct node *n = &self->node;
  const size_t ranks = (size_t)n->size;
  uint64_t as = g->dtype && g->dtype != Py_None ? PyLong_AsUnsignedLongLong(g->dtype) : 0;
  if (PyErr_Occurred()) return -1;
  if (as >> 8) { /* of a type that is none of ours bytes go: 8 bits of its number, then 1, then what is compared */
    c->named = as & 255;
    c->compared = as >> 9;
    as = U8;
  }
  if (!say(n, g, c)) return 0;
  const int gives = call_has_x(c, n->rank), gets = call_has_out(c, n->rank);
  const int has_x = g->x && g->x != Py_None, has_out = gets && g->out && g->out != Py_None, same = g->out == g->x;
  int64_t shape[ARRAY_AXES + 1];
  int takes, axes = 0;
  if (!has_x && (gives || !has_out)) return 0; /* x of the others tells what it looks like at the root, if it is there */
  if (has_x && (takes = look_at(g->x, has_out && same, as, x)) != 1) return takes;
  if (has_out && !same && (takes = look_at(g->out, 1, as, out)) != 1) return takes;
  if (has_out && same) out = x;
  if (has_x) {
    axes = shape_of_result(c->verb, x, n->size, has_out, shape);
    if (axes < 0 || (has_out && !(has_room(c->verb, x, out, ranks) && has_shape(c->verb, out, axes, shape)))) return 0;
    if (verb_is(c->verb, INPUT_BLOCKS) && x->count % ranks) return 0;
  }
  const struct array *seen = has_x ? x : out;
  const size_t blocks = has_x && verb_is(c->verb, INPUT_BLOCKS) ? ranks : 1;
  c->dtype = seen->dtype;
  c->count = seen->count / blocks;
  c->nbytes = c->verb == BY_SCATTER ? seen->nbytes / blocks : seen->nbytes;
  if (c->count * dtype_bytes(c->dtype) > n->most) return 0;
  if (g->op && (!reduce_knows(c->dtype, c->op) || (c->op == OP_AVG && verb_is(c->verb, PREFIXES))))
    return 0;
  if (gives && has_out && !may_share(c, x, out, (size_t)n->rank)) return 0;
  c->x = gives ? x->at : NULL;
  c->out = has_out ? out->at : NULL;
  c->x_lies = gives && x->lies.axes ? &x->lies : NULL;
  c->out_lies = has_out && out->lies.axes ? &out->lies : NULL;
  if ((c->x_lies || c->out_lies) && (n->size == 1 || later)) return 0; /* they stand on the caller's stack */
  if (!gets) return 1;
  *result = has_out ? Py_NewRef(g->out) : array_like(g->x, x, axes, shape, &c->out);
  return *result != NULL;
}

int is_ours(const Node *self) { /* 0: an exception */
  if (self->segment && self->owner == node_forks) return 1;
  PyErr_SetString(PyExc_ValueError, self->segment ? "this node is the parent process's" : "this node is closed");
  return 0;
}

int refuse_thread(Node *self) {
  PyObject *said = self->hook ? PyObject_CallFunction(self->hook, "s()ii", "busy", 0, 0) : Py_NewRef(Py_None);
  if (said) PyErr_SetString(PyExc_RuntimeError, "another thread is in a call of this node");
  Py_XDECREF(said);
  return -1;
}

/* First all that is in the background is carried out: others may be in a call that comes before this one. */
int enter_call(Node *self) {
  if (!is_ours(self)) return -1;
  if (self->busy) return refuse_thread(self);
  if (self->node.first && end_requests(self)) return -1;
  return self->busy = 1, 0;
}

/* The result of a call that this rank gave up is kept until all others have come to a later one: so eight at most. */
void keep_result(Node *self, PyObject *result, uint64_t number) {
  PyObject **at = &self->kept[number % NODE_CELLS], *before = *at;
  *at = Py_XNewRef(result);
  self->keeps = number;
  Py_XDECREF(before);
}
static void let_go(Node *self) {
  self->keeps = 0;
  for (int i = 0; i < NODE_CELLS; i++) Py_CLEAR(self->kept[i]);
}

static PyObject *run(PyObject *me, int verb, struct arguments g) {
  Node *self = (Node *)me;
  struct call c = {.verb = verb};
  struct array x, out;
  PyObject *result = NULL;
  int bad = prepare_call(self, &g, 0, &c, &x, &out, &result) - 1; /* -1: not taken, -2: an exception */
  if (bad == 0) {
    struct doing now = {me, verb_words[verb], g.x && g.x != Py_None ? g.x : g.out, g.op, g.root, 0};
    struct doing *before = begin_call(&now);
    if ((bad = enter_call(self) * 2) == 0) {
      bad = node_run(&self->node, &c);
      self->busy = 0;
      bad = bad == NODE_NO_ROOM ? -1 : bad * 2;
      if (bad == -2 && self->node.gave_up == self->node.calls)
        keep_result(self, result, self->node.calls);
      else if (self->keeps && self->keeps < self->node.seen)
        let_go(self);
    }
    done_call(before);
  }
  if (bad == 0) return result ? result : Py_NewRef(Py_None);
  Py_XDECREF(result);
  return bad == -1 ? Py_NewRef(Py_NotImplemented) : NULL;
}

#define METHOD(name, verb, least, most, ...)                                                                         \
  static PyObject *name(PyObject *self, PyObject *const *a, Py_ssize_t n) {                                          \
    if (n < least || n > most) return PyErr_Format(PyExc_TypeError, #name " takes %d to %d arguments", least, most); \
    return run(self, verb, (struct arguments){__VA_ARGS__});                                                         \
  }
#define OR_NONE(i) (n > i ? a[i] : NULL)
METHOD(all_reduce, BY_ALL_REDUCE, 2, 4, .x = a[0], .op = a[1], .out = OR_NONE(2), .dtype = OR_NONE(3))
METHOD(reduce_scatter, BY_REDUCE_SCATTER, 2, 4, .x = a[0], .op = a[1], .out = OR_NONE(2), .dtype = OR_NONE(3))
METHOD(scan, BY_SCAN, 2, 4, .x = a[0], .op = a[1], .out = OR_NONE(2), .dtype = OR_NONE(3))
METHOD(exscan, BY_EXSCAN, 2, 4, .x = a[0], .op = a[1], .out = OR_NONE(2), .dtype = OR_NONE(3))
METHOD(reduce, BY_REDUCE, 3, 5, .x = a[0], .op = a[1], .root = a[2], .out = OR_NONE(3), .dtype = OR_NONE(4))
METHOD(broadcast, BY_BROADCAST, 2, 4, .x = a[0], .root = a[1], .out = n > 2 ? a[2] : a[0], .dtype = OR_NONE(3))
METHOD(gather, BY_GATHER, 2, 4, .x = a[0], .root = a[1], .out = OR_NONE(2), .dtype = OR_NONE(3))
METHOD(scatter, BY_SCATTER, 2, 4, .x = a[0], .root = a[1], .out = OR_NONE(2), .dtype = OR_NONE(3))
METHOD(all_gather, BY_ALL_GATHER, 1, 3, .x = a[0], .out = OR_NONE(1), .dtype = OR_NONE(2))
METHOD(all_to_all, BY_ALL_TO_ALL, 1, 3, .x = a[0], .out = OR_NONE(1), .dtype = OR_NONE(2))

static PyObject *barrier(PyObject *me, PyObject *none) {
  Node *self = (Node *)me;
  (void)none;
  struct doing now = {.owner = me, .verb = verb_words[BY_BARRIER]}, *before = begin_call(&now);
  int bad = enter_call(self);
  if (!bad) {
    bad = node_arrive_and_wait(&self->node, BY_BARRIER, NULL, 0);
    self->busy = 0;
  }
  done_call(before);
  return bad ? NULL : Py_NewRef(Py_None);
}

uint64_t read_signature(PyObject *given) {
  const uint64_t signature = PyLong_AsUnsignedLongLong(given);
  if (signature >> 63 && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a signature has 63 bits");
  return signature;
}

/* A call that is carried out elsewhere: its number. arrive_and_wait waits for all to come to it. */
static PyObject *arrive_and_wait(PyObject *me, PyObject *given) {
  Node *self = (Node *)me;
  const uint64_t signature = read_signature(given);
  if (PyErr_Occurred() || enter_call(self)) return NULL;
  const int bad = node_arrive_and_wait(&self->node, signature, NULL, 0);
  self->busy = 0;
  return bad ? NULL : PyLong_FromUnsignedLongLong(self->node.calls);
}
static PyObject *arrive(PyObject *me, PyObject *given) {
  Node *self = (Node *)me;
  struct node *n = &self->node;
  const uint64_t signature = read_signature(given);
  if (PyErr_Occurred() || enter_call(self)) return NULL;
  const int bad = node_enter(n, signature);
  if (!bad) node_arrive(n);
  if (!bad) n->told = n->calls; /* it knows why the others do not agree */
  self->busy = 0;
  return bad ? NULL : PyLong_FromUnsignedLongLong(n->calls);
}

/* log_call(signature), last_logged(rank), logged_call(rank, number): the log of calls that are carried out elsewhere;
   queued(rank). They wait for nobody, so a thread may look while another one is in a call, or closes the node; only our
   process writes. */
static struct node *open_node(PyObject *me) {
  Node *self = (Node *)me;
  if (self->segment) return &self->node;
  PyErr_SetString(PyExc_ValueError, "this node is closed");
  return NULL;
}
static PyObject *log_call(PyObject *me, PyObject *given) {
  const uint64_t signature = PyLong_AsUnsignedLongLong(given);
  if (PyErr_Occurred() || !is_ours((Node *)me)) return NULL;
  return PyLong_FromUnsignedLongLong(node_log_call(&((Node *)me)->node, signature));
}
static int rank_of(const struct node *n, PyObject *given) {
  long rank = n ? PyLong_AsLong(given) : -1;
  if (!PyErr_Occurred() && (rank < 0 || rank >= n->size)) PyErr_Format(PyExc_ValueError, "rank %ld", rank);
  return PyErr_Occurred() ? -1 : (int)rank;
}
static PyObject *queued(PyObject *me, PyObject *given) { /* whether it has begun calls to which it has not come */
  if (!((Node *)me)->segment) Py_RETURN_FALSE;
  struct node *n = open_node(me);
  int rank = rank_of(n, given);
  return rank < 0 ? NULL : PyBool_FromLong((long)node_load(&n->place->rank[rank].status.queued));
}
static PyObject *last_logged(PyObject *me, PyObject *given) {
  if (!((Node *)me)->segment) return PyLong_FromLong(0);
  struct node *n = open_node(me);
  int rank = rank_of(n, given);
  return rank < 0 ? NULL : PyLong_FromUnsignedLongLong(node_load(&n->place->rank[rank].log.calls));
}
static PyObject *words(PyObject *me, PyObject *given) { /* where those of a rank begin in the segment */
  struct node *n = open_node(me);
  int rank = rank_of(n, given);
  return rank < 0 ? NULL : PyLong_FromSize_t((size_t)((char *)n->place->rank[rank].words - (char *)n->segment->head));
}
static PyObject *logged_call(PyObject *me, PyObject *const *a, Py_ssize_t count) {
  if (!((Node *)me)->segment) Py_RETURN_NONE;
  struct node *n = open_node(me);
  uint64_t signature;
  if (count != 2) return PyErr_Format(PyExc_TypeError, "logged_call takes a rank and a number");
  int rank = rank_of(n, a[0]);
  const uint64_t number = rank < 0 ? 0 : PyLong_AsUnsignedLongLong(a[1]);
  if (PyErr_Occurred()) return NULL;
  if (!node_logged_call(n, rank, number, &signature)) Py_RETURN_NONE;
  return PyLong_FromUnsignedLongLong(signature);
}

/* -- Node --------------------------------------------------------------------------------------------------------- */
static PyObject *node_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  static char *words[] = {"segment", "place", "rank", "hook", "spins", "checks", "direct", NULL};
  Segment *segment;
  unsigned long long offset;
  int rank, spins = 2000, checks = 1, direct = 0;
  PyObject *hook = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!Ki|Oipp", words, segment_type, &segment, &offset, &rank, &hook,
                                   &spins, &checks, &direct))
    return NULL;
  if (offset + sizeof(struct node_place) > segment->segment.nbytes || offset % NODE_UNIT || offset == 0)
    return PyErr_Format(PyExc_ValueError, "no place begins at %llu", offset);
  struct node_place *place = (struct node_place *)((char *)segment->segment.head + offset);
  if (rank < 0 || (uint64_t)rank >= place->size || place->size > NODE_RANKS ||
      offset + node_place_bytes((int)place->size) > segment->segment.nbytes)
    return PyErr_Format(PyExc_ValueError, "rank %d of %llu", rank, (unsigned long long)place->size);
  Node *self = new_object(type);
  if (!self) return NULL;
  self->segment = (Segment *)Py_NewRef((PyObject *)segment);
  self->hook = hook == Py_None ? NULL : Py_NewRef(hook);
  self->owner = node_forks;
  self->node = (struct node){.host = &python_host,
                             .program = self->hook,
                             .spins = spins,
                             .checks = checks,
                             .most = UINT64_MAX,
                             .direct = direct,
                             .direct_from = DIRECT_FROM};
  node_attach(&self->node, &segment->segment, place, rank);
  return (PyObject *)self;
}

static int is_moving(const Node *self) { return self->carries || (self->mail && self->mail->moving); }
int depart(Node *self) {
  Segment *segment = self->segment;
  if (self->busy || is_moving(self) || self->node.first) return 0;
  if (segment && self->owner == node_forks) close_mail(self);
  self->segment = NULL;
  const int last = segment && self->owner == node_forks && node_leave(&segment->segment, self->node.place);
  if (last) let_go(self); /* else some may still be in a call whose result is kept */
  Py_XDECREF((PyObject *)segment);
  self->node.program = NULL;
  Py_CLEAR(self->hook);
  free(self->node.scratch);
  self->node.scratch = NULL;
  return last;
}
static int node_clear(PyObject *me) { return depart((Node *)me), 0; }
static int node_traverse(PyObject *me, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(me));
  Py_VISIT((PyObject *)((Node *)me)->segment);
  Py_VISIT(((Node *)me)->hook);
  return 0;
}
static void node_dealloc(PyObject *me) {
  PyObject_GC_UnTrack(me);
  node_clear(me);
  free(((Node *)me)->mail);
  free_object(me);
}
static PyObject *node_close(PyObject *me, PyObject *none) {
  (void)none;
  if (((Node *)me)->busy || (is_moving((Node *)me) && !((Node *)me)->carries)) return PyErr_Format(PyExc_RuntimeError, "another thread is in a call of this node");
  ((Node *)me)->is_closing = 1;
  return PyBool_FromLong(depart((Node *)me));
}

/* calls(): for each rank (number, signature, waits for, since): its last call, and for whom it waits since when.
   last_calls(rank): (number, signature) of those that its cells still hold, the oldest first */
static uint64_t last_call(const struct node *n, int rank) {
  uint64_t number = 0;
  for (int i = 0; i < NODE_CELLS; i++) {
    const uint64_t arrival = node_load(&n->place->rank[rank].cell[i].arrival);
    if (!node_is_behind(arrival, number)) number = arrival >> 2;
  }
  return number;
}
static PyObject *node_calls(PyObject *me, PyObject *none) {
  struct node *n = open_node(me);
  (void)none;
  PyObject *list = n ? PyList_New(n->size) : NULL;
  for (int r = 0; list && r < n->size; r++) {
    struct node_rank *rank = &n->place->rank[r];
    const uint64_t number = last_call(n, r);
    const int is_waiting = node_load(&rank->status.waiting) != 0;
    PyObject *waits = is_waiting ? PyLong_FromUnsignedLongLong(node_peek(&rank->status.rank)) : Py_NewRef(Py_None);
    PyObject *since =
        is_waiting ? PyFloat_FromDouble((double)node_peek(&rank->status.since) * 1e-9) : Py_NewRef(Py_None);
    PyList_SetItem(list, r,
                   Py_BuildValue("(KKNN)", (unsigned long long)number,
                                 (unsigned long long)node_signature(n, r, number), waits, since));
  }
  return list;
}
static PyObject *last_calls(PyObject *me, PyObject *given) {
  struct node *n = open_node(me);
  const int rank = rank_of(n, given);
  const uint64_t last = rank < 0 ? 0 : last_call(n, rank);
  PyObject *list = rank < 0 ? NULL : PyList_New(0);
  for (uint64_t number = last < NODE_CELLS ? 1 : last - NODE_CELLS + 1; list && number <= last; number++) {
    const uint64_t signature = node_signature(n, rank, number); /* 0: withdrawn, or written over meanwhile */
    PyObject *call = Py_BuildValue("(KK)", (unsigned long long)number, (unsigned long long)signature);
    if (!call || (signature && PyList_Append(list, call))) Py_CLEAR(list);
    Py_XDECREF(call);
  }
  return list;
}

static PyObject *get_timeout(PyObject *me, void *none) {
  return (void)none, PyFloat_FromDouble(((Node *)me)->node.timeout);
}
static int set_timeout(PyObject *me, PyObject *value, void *none) { /* a member would be -1 after a bad value */
  (void)none;
  if (!value) return PyErr_SetString(PyExc_AttributeError, "cannot be deleted"), -1;
  const double seconds = PyFloat_AsDouble(value);
  if (PyErr_Occurred()) return -1;
  return ((Node *)me)->node.timeout = seconds, 0;
}
static int set_hook(PyObject *me, PyObject *hook, void *none) {
  Node *self = (Node *)me;
  PyObject *before = self->hook;
  (void)none;
  self->node.program = self->hook = Py_XNewRef(hook);
  Py_XDECREF(before);
  return 0;
}

/* -- functions of the module --------------------------------------------------------------------------------------- */
static PyObject *know_numpy(PyObject *module, PyObject *numpy) {
  return (void)module, array_know_numpy(numpy) ? NULL : Py_NewRef(Py_None);
}
static PyObject *know_ml_dtypes(PyObject *module, PyObject *ml_dtypes) {
  return (void)module, array_know_ml_dtypes(ml_dtypes) ? NULL : Py_NewRef(Py_None);
}
static PyObject *know_torch(PyObject *module, PyObject *torch) {
  int by_table = array_know_torch(torch);
  (void)module;
  return by_table < 0 ? NULL : PyBool_FromLong(by_table);
}

/* mark(): what another process needs to see that it can reach this one's memory: pid, address, what stands there. */
static PyObject *mark(PyObject *module, PyObject *none) {
  static uint64_t token;
  (void)module, (void)none;
  if (!token) token = (node_now() ^ (uint64_t)getpid() << 40) >> 1; /* for words that have a sign */
  return Py_BuildValue("(iKK)", (int)getpid(), (unsigned long long)(uintptr_t)&token, (unsigned long long)token);
}
static PyObject *reaches(PyObject *module, PyObject *const *a, Py_ssize_t count) {
  (void)module;
  if (count != 3) return PyErr_Format(PyExc_TypeError, "reaches takes what mark() says");
  const int pid = (int)PyLong_AsLong(a[0]);
  const uint64_t at = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLongLong(a[1]);
  const uint64_t token = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLongLong(a[2]);
  return PyErr_Occurred() ? NULL : PyBool_FromLong(direct_reaches_process(pid, at, token));
}

static PyObject *domain(PyObject *module, PyObject *none) { /* of memory, near which this thread runs */
  unsigned cpu, its = 0;
  return (void)module, (void)none, syscall(SYS_getcpu, &cpu, &its, NULL) ? PyLong_FromLong(0) : PyLong_FromLong(its & 255);
}

/* -- tables ------------------------------------------------------------------------------------------------------- */
#define FAST(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}
static PyMethodDef node_methods[] = {FAST(all_reduce),
                                     FAST(reduce_scatter),
                                     FAST(scan),
                                     FAST(exscan),
                                     FAST(reduce),
                                     FAST(broadcast),
                                     FAST(gather),
                                     FAST(scatter),
                                     FAST(all_gather),
                                     FAST(all_to_all),
                                     {"begin", (PyCFunction)(void (*)(void))node_begin, METH_FASTCALL, NULL},
                                     {"share", (PyCFunction)(void (*)(void))node_share, METH_FASTCALL, NULL},
                                     {"arrive_and_wait", arrive_and_wait, METH_O, NULL},
                                     {"tell", (PyCFunction)(void (*)(void))node_tell, METH_FASTCALL, NULL},
                                     {"isend", (PyCFunction)(void (*)(void))node_isend, METH_FASTCALL, NULL},
                                     {"irecv", (PyCFunction)(void (*)(void))node_irecv, METH_FASTCALL, NULL},
                                     {"move_messages", node_move_messages, METH_NOARGS, NULL},
                                     {"untaken", node_untaken, METH_O, NULL},
                                     FAST(logged_call),
                                     {"arrive", arrive, METH_O, NULL},
                                     {"log_call", log_call, METH_O, NULL},
                                     {"last_logged", last_logged, METH_O, NULL},
                                     {"queued", queued, METH_O, NULL},
                                     {"words", words, METH_O, NULL},
                                     {"barrier", barrier, METH_NOARGS, NULL},
                                     {"calls", node_calls, METH_NOARGS, NULL},
                                     {"last_calls", last_calls, METH_O, NULL},
                                     {"close", node_close, METH_NOARGS, NULL},
                                     {0}};
static PyMemberDef node_members[] = {{"rank", T_INT, offsetof(Node, node.rank), READONLY, NULL},
                                     {"size", T_INT, offsetof(Node, node.size), READONLY, NULL},
                                     {"busy", T_INT, offsetof(Node, busy), READONLY, NULL},
                                     {"direct", T_INT, offsetof(Node, node.direct), READONLY, NULL},
                                     {"number", T_ULONGLONG, offsetof(Node, node.calls), READONLY, NULL},
                                     {"most", T_ULONGLONG, offsetof(Node, node.most), 0, NULL},
                                     {"direct_from", T_ULONGLONG, offsetof(Node, node.direct_from), 0, NULL},
                                     {"spins", T_INT, offsetof(Node, node.spins), 0, NULL},
                                     {"checks", T_INT, offsetof(Node, node.checks), 0, NULL},
                                     {"synchronous", T_INT, offsetof(Node, node.synchronous), 0, NULL},
                                     {0}};
static PyGetSetDef node_attributes[] = {{"timeout", get_timeout, set_timeout, NULL, NULL},
                                        {"hook", NULL, set_hook, NULL, NULL},
                                        {0}};
static PyType_Slot node_slots[] = {{Py_tp_new, node_new},
                                   {Py_tp_dealloc, node_dealloc},
                                   {Py_tp_traverse, node_traverse},
                                   {Py_tp_clear, node_clear},
                                   {Py_tp_methods, node_methods},
                                   {Py_tp_members, node_members},
                                   {Py_tp_getset, node_attributes},
                                   {0, NULL}};
static PyType_Spec node_spec = {"hpcomm.node._native.core.Node", sizeof(Node), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, node_slots};
static PyMethodDef functions[] = {
    {"know_numpy", know_numpy, METH_O, NULL},
    {"know_ml_dtypes", know_ml_dtypes, METH_O, NULL},
    {"know_torch", know_torch, METH_O, NULL},
    {"mark", mark, METH_NOARGS, NULL},
    {"domain", domain, METH_NOARGS, NULL},
    FAST(reaches),
    {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "core", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_core(void) {
  pthread_atfork(NULL, NULL, forked);
  PyObject *m = PyModule_Create(&module), *node = PyType_FromSpec(&node_spec),
           *channel = PyType_FromSpec(&channel_spec);
  segment_type = (PyTypeObject *)PyType_FromSpec(&segment_spec);
  message_type = (PyTypeObject *)PyType_FromSpec(&message_spec);
  request_type = (PyTypeObject *)PyType_FromSpec(&request_spec);
  for (int i = 0; i < OPS; i++)
    if (!(op_words[i] = PyUnicode_InternFromString(op_names[i]))) return NULL;
  for (int i = NO_VERB + 1; i < VERBS; i++)
    if (!(verb_words[i] = PyUnicode_InternFromString(verb_names[i]))) return NULL;
  if (!m || !node || !channel || !segment_type || !message_type || !request_type || PyModule_AddFunctions(m, present_functions) ||
      PyModule_AddObjectRef(m, "Segment", (PyObject *)segment_type) ||
      PyModule_AddObjectRef(m, "Node", node) || PyModule_AddObjectRef(m, "Message", (PyObject *)message_type) ||
      PyModule_AddObjectRef(m, "Request", (PyObject *)request_type) || PyModule_AddObjectRef(m, "Channel", channel) ||
      PyModule_AddIntConstant(m, "VERSION", NODE_VERSION) ||
      PyModule_AddIntConstant(m, "WORDS", NODE_WORDS) ||
      PyModule_AddIntConstant(m, "UNIT", NODE_UNIT))
    return NULL;
  return m;
}
