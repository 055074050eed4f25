/* request_type.c: core.Request, a call in the background, and who carries it out: whoever waits for it or asks, and whoever
   makes another call of the node. One thread at a time: others wait for that one, but who only asks does not. */
#include "module.h"

#include <structmember.h>
#include <time.h>

#define LOOK_NS 1000000u
#define PAUSE_NS 20000 /* long enough for the other thread to take Python's lock: it is handed to nobody */

PyTypeObject *request_type;

static Request *object_of(struct request *l) { return (Request *)((char *)l - offsetof(Request, request)); }

/* It has ended, well or not: nobody needs its arrays any more. Drops the queue's reference. */
static void let_go(Node *self, Request *l) {
  if (l->request.has_failed && self->node.gave_up == l->request.number && l->request.number)
    keep_result(self, l->result, l->request.number);
  if (l->request.has_failed) Py_CLEAR(l->result);
  Node *node = l->node;
  l->node = NULL;
  Py_CLEAR(l->x);
  Py_DECREF((PyObject *)l);
  Py_XDECREF((PyObject *)node);
}

/* One has failed: whoever waits for it hears why. */
static void take_error(Request *l) {
  PyObject *type, *value, *trace;
  if (!l->request.has_failed || !PyErr_Occurred()) return;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (value && trace) PyException_SetTraceback(value, trace);
  Py_CLEAR(l->error);
  l->error = value;
  Py_XDECREF(type);
  Py_XDECREF(trace);
}

static void enter_all(Node *self) {
  struct request *failed;
  while ((failed = request_enter(&self->node))) take_error(object_of(failed));
}

/* Carry out what is in the queue, up to this one, or all of it; 1: done, 0: not yet, -1: an exception, such as Ctrl-C. */
static int carry_out(Node *self, const Request *last, int patience) {
  struct node *n = &self->node;
  self->carries = 1;
  self->thread = PyThread_get_thread_ident();
  while (n->first && !(last && !last->node)) {
    struct request *l = request_move(n, patience);
    if (!l) break;
    take_error(object_of(l));
    enter_all(self);
    let_go(self, object_of(l));
  }
  self->carries = 0;
  const int done = last ? !last->node : !n->first;
  if (self->is_closing && !n->first) depart(self);
  return PyErr_Occurred() ? -1 : done;
}

/* Wait until no other thread carries out anything here. */
static int wait_for_thread(Node *self) {
  while (self->carries || self->busy) {
    if (self->thread == PyThread_get_thread_ident()) return refuse_thread(self); /* a handler of ours within it */
    PyThreadState *state = PyEval_SaveThread();
    nanosleep(&(struct timespec){0, PAUSE_NS}, NULL);
    PyEval_RestoreThread(state);
    if (PyErr_CheckSignals()) return -1;
  }
  return 0;
}

static Request *new_request(Node *self) {
  Request *l = new_object(request_type);
  if (l) l->node = (Node *)Py_NewRef((PyObject *)self);
  return l;
}

/* Of a call that waits for the others: first all that is in the queue. If that takes too long, it fails, and has its place there. */
int end_requests(Node *self) {
  struct node *n = &self->node;
  if (wait_for_thread(self)) return -1;
  if (self->busy) return refuse_thread(self);
  n->limit = n->synchronous ? 0 : n->timeout;
  const int done = carry_out(self, NULL, n->synchronous ? 0 : PATIENT);
  n->limit = 0;
  if (done == 1) return 0;
  if (!done) request_look(n, WHY_LATE);
  Request *debt = new_request(self);
  if (debt) request_begin(n, &debt->request); /* its verb is 0 */
  return -1;
}

/* begin(verb, x, op, root, out, dtype): a call in the background */
PyObject *node_begin(PyObject *me, PyObject *const *a, Py_ssize_t count) {
  Node *self = (Node *)me;
  struct node *n = &self->node;
  if (count != 6) return PyErr_Format(PyExc_TypeError, "begin takes a verb, x, op, root, out and dtype");
  struct call c = {.verb = (int)PyLong_AsLong(a[0])};
#define OR_NULL(i) (a[i] == Py_None ? NULL : a[i])
  const struct arguments g = {a[1], OR_NULL(2), OR_NULL(3), OR_NULL(4), a[5]};
  struct array x, out;
  PyObject *result = NULL;
  if (PyErr_Occurred() || !is_ours(self)) return NULL;
  const int lacks = (verb_is(c.verb, REDUCTIONS) && !g.op) || (verb_is(c.verb, ROOTED) && !g.root);
  const int takes = c.verb == BY_BARRIER ? 1 : lacks ? 0 : prepare_call(self, &g, 1, &c, &x, &out, &result);
  Request *l = NULL;
  if (takes != 1) goto not_taken;
  if (self->busy && refuse_thread(self)) goto failed;
  call_sign(&c);
  if (!n->synchronous) c.signature |= NODE_BACKGROUND; /* in torch's groups calls of both kinds meet */
  if (n->size > 1 && call_is_long(n, &c)) {
    if (!n->pieces && (wait_for_thread(self) || long_find_pieces(n))) goto failed;
    n->has_begun_long = 1;
    if (n->pieces == NODE_NO_PIECES) goto not_taken;
  }
  if (!(l = new_request(self))) goto failed;
  l->x = Py_NewRef(a[1]);
  l->result = result ? result : Py_NewRef(Py_None);
  l->request.call = c;
  if (n->size == 1) {
    call_take(n, &c);
    Py_CLEAR(l->node);
    return (PyObject *)l;
  }
  Py_INCREF((PyObject *)l); /* the queue's */
  request_begin(n, &l->request);
  if (self->carries) return (PyObject *)l;
  struct doing now = {me, verb_words[c.verb], a[1] == Py_None ? a[4] : a[1], g.op, g.root, 0};
  struct doing *before = begin_call(&now);
  self->carries = 1;
  self->thread = PyThread_get_thread_ident();
  enter_all(self);
  self->carries = 0;
  done_call(before);
  if (!l->error) return (PyObject *)l;
  PyErr_SetObject((PyObject *)Py_TYPE(l->error), l->error);
  return Py_DECREF((PyObject *)l), NULL;
not_taken:
  Py_XDECREF(result);
  return takes < 0 ? NULL : Py_NewRef(Py_NotImplemented);
failed:
  Py_XDECREF(result);
  return NULL;
}

static PyObject *outcome(const Request *l, int done) {
  if (done < 0) return NULL;
  if (!done || !l->error) return PyBool_FromLong(done);
  PyErr_SetObject((PyObject *)Py_TYPE(l->error), l->error);
  return NULL;
}

/* Test(status): whether it has ended; moves on what can be without a wait. */
static PyObject *request_test(PyObject *me, PyObject *const *a, Py_ssize_t count) {
  Request *l = (Request *)me;
  Node *self = l->node;
  (void)a, (void)count;
  if (!self) return outcome(l, 1);
  if (self->busy || self->carries || !is_ours(self)) return PyErr_Occurred() ? NULL : PyBool_FromLong(0);
  Py_INCREF((PyObject *)self);
  int done = carry_out(self, l, TRIES);
  const uint64_t now = done ? 0 : node_now();
  if (!done && now - self->looked > LOOK_NS) {
    self->looked = now;
    self->carries = 1;
    struct request *first = self->node.first;
    if (request_look(&self->node, WHY_WAITS)) take_error(object_of(first));
    self->carries = 0;
    done = PyErr_Occurred() ? -1 : l->request.has_failed ? carry_out(self, l, TRIES) : 0;
  }
  Py_DECREF((PyObject *)self);
  return outcome(l, done);
}

/* Wait(status): until it has ended. */
static PyObject *request_wait(PyObject *me, PyObject *const *a, Py_ssize_t count) {
  Request *l = (Request *)me;
  int done = 0;
  (void)a, (void)count;
  while (l->node && !done) {
    Node *self = (Node *)Py_NewRef((PyObject *)l->node);
    done = !is_ours(self) || wait_for_thread(self) ? -1 : !l->node ? 1 : carry_out(self, l, self->node.synchronous ? 0 : PATIENT);
    Py_DECREF((PyObject *)self);
  }
  return outcome(l, done < 0 ? -1 : 1);
}

static void request_dealloc(PyObject *me) {
  Request *l = (Request *)me;
  Py_CLEAR(l->x);
  Py_CLEAR(l->result);
  Py_CLEAR(l->error);
  Py_XDECREF((PyObject *)l->node);
  free_object(me);
}

/* Whether somebody has to move it on for others' sake, though nobody waits for it here. */
static PyObject *get_moves(PyObject *me, void *none) {
  const Request *l = (Request *)me;
  (void)none;
  return PyBool_FromLong(l->node && (!l->request.number || call_is_long(&l->node->node, &l->request.call)));
}

static PyMethodDef methods[] = {{"Test", (PyCFunction)(void (*)(void))request_test, METH_FASTCALL, NULL},
                                {"Wait", (PyCFunction)(void (*)(void))request_wait, METH_FASTCALL, NULL},
                                {0}};
static PyMemberDef members[] = {{"result", T_OBJECT, offsetof(Request, result), READONLY, NULL},
                                {0}};
static PyObject *get_over(PyObject *me, void *none) { return (void)none, PyBool_FromLong(!((Request *)me)->node); }
static PyGetSetDef attributes[] = {{"moves", get_moves, NULL, NULL, NULL}, {"over", get_over, NULL, NULL, NULL}, {0}};
static PyType_Slot slots[] = {{Py_tp_dealloc, request_dealloc},
                              {Py_tp_methods, methods},
                              {Py_tp_members, members},
                              {Py_tp_getset, attributes},
                              {0, NULL}};
PyType_Spec request_spec = {"hpcomm.node._native.core.Request", sizeof(Request), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
