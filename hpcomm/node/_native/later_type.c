/* later_type.c: core.Later, a call in the background, and who carries it out: whoever waits for it or asks, and whoever
   makes another call of the node. One thread at a time: others wait for that one, but who only asks does not. */
#include "module.h"

#include <structmember.h>
#include <time.h>

#define LOOK_NS 1000000u
#define PAUSE_NS 20000 /* long enough for the other thread to take Python's lock: it is handed to nobody */

PyTypeObject *later_type;

static Later *object_of(struct later *l) { return (Later *)((char *)l - offsetof(Later, later)); }

/* It has ended, well or not: nobody needs its arrays any more. Drops the line's reference. */
static void let_go(Node *self, Later *l) {
  if (l->later.has_failed && self->node.gave_up == l->later.number && l->later.number)
    keep_result(self, l->result, l->later.number);
  if (l->later.has_failed) Py_CLEAR(l->result);
  Node *node = l->node;
  l->node = NULL;
  Py_CLEAR(l->x);
  Py_DECREF((PyObject *)l);
  Py_XDECREF((PyObject *)node);
}

/* One has failed: whoever waits for it hears why. */
static void take_error(Later *l) {
  PyObject *type, *value, *trace;
  if (!l->later.has_failed || !PyErr_Occurred()) return;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (value && trace) PyException_SetTraceback(value, trace);
  Py_CLEAR(l->error);
  l->error = value;
  Py_XDECREF(type);
  Py_XDECREF(trace);
}

static void enter_all(Node *self) {
  struct later *failed;
  while ((failed = later_enter(&self->node))) take_error(object_of(failed));
}

/* Carry out what is in line, up to this one, or all of it; 1: done, 0: not yet, -1: an exception, such as Ctrl-C. */
static int carry_out(Node *self, const Later *last, int patience) {
  struct node *n = &self->node;
  self->carries = 1;
  self->thread = PyThread_get_thread_ident();
  while (n->first && !(last && !last->node)) {
    struct later *l = later_move(n, patience);
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

static Later *new_later(Node *self) {
  Later *l = new_object(later_type);
  if (l) l->node = (Node *)Py_NewRef((PyObject *)self);
  return l;
}

/* Of a call that waits for the others: first all that is in line. If that takes too long, it fails, and has its place there. */
int end_later(Node *self) {
  struct node *n = &self->node;
  if (wait_for_thread(self)) return -1;
  if (self->busy) return refuse_thread(self);
  n->limit = n->synchronous ? 0 : n->timeout;
  const int done = carry_out(self, NULL, n->synchronous ? 0 : PATIENT);
  n->limit = 0;
  if (done == 1) return 0;
  if (!done) later_look(n, WHY_LATE);
  Later *debt = new_later(self);
  if (debt) later_begin(n, &debt->later); /* its verb is 0 */
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
  const int takes = c.verb == BY_BARRIER ? 1 : prepare_call(self, &g, &c, &x, &out, &result);
  Later *l = NULL;
  if (takes != 1) goto not_taken;
  if (self->busy && refuse_thread(self)) goto failed;
  call_sign(&c);
  c.signature |= 1u << 31;
  if (n->size > 1 && call_is_long(n, &c)) {
    if (!n->pieces && (wait_for_thread(self) || long_find_pieces(n))) goto failed;
    n->has_begun_long = 1;
    if (n->pieces == NODE_NO_PIECES) goto not_taken;
  }
  if (!(l = new_later(self))) goto failed;
  l->x = Py_NewRef(a[1]);
  l->result = result ? result : Py_NewRef(Py_None);
  l->later.call = c;
  if (n->size == 1) {
    call_take(n, &c);
    Py_CLEAR(l->node);
    return (PyObject *)l;
  }
  Py_INCREF((PyObject *)l); /* the line's */
  later_begin(n, &l->later);
  if (self->carries) return (PyObject *)l;
  self->carries = 1;
  self->thread = PyThread_get_thread_ident();
  enter_all(self);
  self->carries = 0;
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

static PyObject *outcome(const Later *l, int done) {
  if (done < 0) return NULL;
  if (!done || !l->error) return PyBool_FromLong(done);
  PyErr_SetObject((PyObject *)Py_TYPE(l->error), l->error);
  return NULL;
}

/* Test(status): whether it has ended; moves on what can be without a wait. */
static PyObject *later_test(PyObject *me, PyObject *const *a, Py_ssize_t count) {
  Later *l = (Later *)me;
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
    struct later *first = self->node.first;
    if (later_look(&self->node, WHY_WAITS)) take_error(object_of(first));
    self->carries = 0;
    done = PyErr_Occurred() ? -1 : l->later.has_failed ? carry_out(self, l, TRIES) : 0;
  }
  Py_DECREF((PyObject *)self);
  return outcome(l, done);
}

/* Wait(status): until it has ended. */
static PyObject *later_wait(PyObject *me, PyObject *const *a, Py_ssize_t count) {
  Later *l = (Later *)me;
  int done = 0;
  (void)a, (void)count;
  while (l->node && !done) {
    Node *self = (Node *)Py_NewRef((PyObject *)l->node);
    done = !is_ours(self) || wait_for_thread(self) ? -1 : !l->node ? 1 : carry_out(self, l, self->node.synchronous ? 0 : PATIENT);
    Py_DECREF((PyObject *)self);
  }
  return outcome(l, done < 0 ? -1 : 1);
}

static void later_dealloc(PyObject *me) {
  Later *l = (Later *)me;
  Py_CLEAR(l->x);
  Py_CLEAR(l->result);
  Py_CLEAR(l->error);
  Py_XDECREF((PyObject *)l->node);
  free_object(me);
}

/* Whether somebody has to move it on for others' sake, though nobody waits for it here. */
static PyObject *get_moves(PyObject *me, void *none) {
  const Later *l = (Later *)me;
  (void)none;
  return PyBool_FromLong(l->node && (!l->later.number || call_is_long(&l->node->node, &l->later.call)));
}

static PyMethodDef methods[] = {{"Test", (PyCFunction)(void (*)(void))later_test, METH_FASTCALL, NULL},
                                {"Wait", (PyCFunction)(void (*)(void))later_wait, METH_FASTCALL, NULL},
                                {0}};
static PyMemberDef members[] = {{"result", T_OBJECT, offsetof(Later, result), READONLY, NULL},
                                {0}};
static PyObject *get_over(PyObject *me, void *none) { return (void)none, PyBool_FromLong(!((Later *)me)->node); }
static PyGetSetDef attributes[] = {{"moves", get_moves, NULL, NULL, NULL}, {"over", get_over, NULL, NULL, NULL}, {0}};
static PyType_Slot slots[] = {{Py_tp_dealloc, later_dealloc},
                              {Py_tp_methods, methods},
                              {Py_tp_members, members},
                              {Py_tp_getset, attributes},
                              {0, NULL}};
PyType_Spec later_spec = {"hpcomm.node._native.core.Later", sizeof(Later), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
