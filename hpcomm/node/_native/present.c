/* present.c: the present call of each thread of this process, which other threads read while it lasts.

   A thread has two places. One is for a message that Python carries out by one call of MPI: enter() fills it, leave()
   clears it. The other is for a collective of the core, which fills it itself.

       owner          verb    x       to or by       with           count
       communicator   "send"  array   rank           tag            of this thread's calls so far
       node           "scan"  array   operator       root

   References are owned in the first place. In the second one they are those that the call's own caller holds. All is
   written and read with the global lock held. */
#include "module.h"

#include <stdlib.h>

static struct thread *threads;
__thread struct thread *this_one QUICK;

struct thread *first_seen(void) {
  const unsigned long ident = PyThread_get_thread_ident();
  for (this_one = threads; this_one; this_one = this_one->next) /* of a thread that has ended */
    if (this_one->ident == ident) return this_one->call = NULL, this_one;
  if (!(this_one = calloc(1, sizeof *this_one))) return (struct thread *)PyErr_NoMemory();
  this_one->ident = ident;
  this_one->next = threads;
  return threads = this_one;
}

static void drop(struct doing was) {
  if (!was.owner) return;
  Py_DECREF(was.owner);
  Py_DECREF(was.verb);
  Py_DECREF(was.x);
  Py_DECREF(was.by);
  Py_DECREF(was.with);
}

static PyObject *enter(PyObject *module, PyObject *const *a, Py_ssize_t n) {
  (void)module;
  if (n != 5) return PyErr_Format(PyExc_TypeError, "enter takes 5 arguments");
  struct thread *t = this_one ? this_one : first_seen();
  if (!t) return NULL;
  const struct doing was = t->message;
  t->message = (struct doing){Py_NewRef(a[0]), Py_NewRef(a[1]), Py_NewRef(a[2]),
                              Py_NewRef(a[3]), Py_NewRef(a[4]), ++t->count};
  drop(was);
  return Py_NewRef(Py_None);
}

static PyObject *leave(PyObject *module, PyObject *none) {
  (void)module, (void)none;
  if (this_one) {
    const struct doing was = this_one->message;
    this_one->message.owner = NULL;
    drop(was);
  }
  return Py_NewRef(Py_None);
}

static PyObject *told(const struct doing *d) {
  if (!d || !d->owner) return Py_NewRef(Py_None);
  PyObject *none = Py_None;
  return Py_BuildValue("(OOOOOK)", d->owner, d->verb, d->x ? d->x : none, d->by ? d->by : none,
                       d->with ? d->with : none, (unsigned long long)d->count);
}

static PyObject *present(PyObject *module, PyObject *none) {
  (void)module, (void)none;
  PyObject *all = PyDict_New();
  for (const struct thread *t = threads; all && t; t = t->next) {
    if (!t->message.owner && !t->call) continue;
    PyObject *ident = PyLong_FromUnsignedLong(t->ident), *both = Py_BuildValue("(NN)", told(&t->message), told(t->call));
    if (!ident || !both || PyDict_SetItem(all, ident, both)) Py_CLEAR(all);
    Py_XDECREF(ident);
    Py_XDECREF(both);
  }
  return all;
}

PyMethodDef present_functions[] = {{"enter", (PyCFunction)(void (*)(void))enter, METH_FASTCALL, NULL},
                                   {"leave", leave, METH_NOARGS, NULL},
                                   {"present", present, METH_NOARGS, NULL},
                                   {0}};
