/* parcels.c: Node.share and Node.tell, as Python sees them: blocks of memory of any number and length (share.c), and a
   few bytes of each rank. */
#include "module.h"

#include <stdlib.h>

struct given { /* the parcels of this rank, and what keeps their memory */
  size_t counts[NODE_RANKS], blocks;
  Py_buffer *views;
  struct node_part *parts;
};

static void let_go(struct given *g) {
  while (g->blocks) PyBuffer_Release(&g->views[--g->blocks]);
  free(g->views);
  free(g->parts);
}

/* Look at lists of blocks, one for each parcel. */
static int look_at(PyObject *parcels, Py_ssize_t most, struct given *g) {
  const Py_ssize_t n = most ? PyList_Size(parcels) : 0; /* 0: this rank gives nothing */
  size_t total = 0;
  for (Py_ssize_t i = 0; i < n && i < most; i++) {
    const Py_ssize_t count = PyList_Size(PyList_GetItem(parcels, i));
    if (count < 0) return -1;
    total += g->counts[i] = (size_t)count;
  }
  if (n < 0) return -1;
  if (n != most) return PyErr_Format(PyExc_ValueError, "%zd parcels, not %zd", n, most), -1;
  g->views = malloc(total * sizeof *g->views + 1);
  g->parts = malloc(total * sizeof *g->parts + 1);
  if (!g->views || !g->parts) return PyErr_NoMemory(), -1;
  for (Py_ssize_t i = 0; i < n; i++)
    for (size_t j = 0; j < g->counts[i]; j++) {
      Py_buffer *view = &g->views[g->blocks];
      PyObject *parcel = PyList_GetItem(parcels, i); /* the buffer of another block may have changed the lists */
      PyObject *block = parcel ? PyList_GetItem(parcel, (Py_ssize_t)j) : NULL;
      if (!block || PyObject_GetBuffer(block, view, PyBUF_SIMPLE)) return -1;
      g->parts[g->blocks++] = (struct node_part){(uintptr_t)view->buf, (size_t)view->len};
    }
  return 0;
}

struct taken { /* for each rank a list of blocks, or None; what makes memory for long ones, and the view of the last */
  PyObject *lists, *memory;
  Py_buffer view;
};

/* Memory for a block: of those that came with the parcel bytes for the first, bytearrays for others. */
static char *memory_of(void *program, int rank, size_t i, size_t nbytes, int is_short) {
  struct taken *t = program;
  char *at = NULL;
  PyObject *block = !is_short ? PyObject_CallFunction(t->memory, "K", (unsigned long long)nbytes)
                    : i       ? PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)nbytes)
                              : PyBytes_FromStringAndSize(NULL, (Py_ssize_t)nbytes);
  PyBuffer_Release(&t->view);
  if (block && is_short)
    at = i ? PyByteArray_AsString(block) : PyBytes_AsString(block);
  else if (block && !PyObject_GetBuffer(block, &t->view, PyBUF_WRITABLE)) {
    if ((size_t)t->view.len == nbytes) at = t->view.buf;
    else PyErr_Format(PyExc_ValueError, "memory of %zd bytes", t->view.len);
  }
  if (at && PyList_Append(PyList_GetItem(t->lists, rank), block)) at = NULL;
  Py_XDECREF(block);
  return at;
}

static PyObject *empty_lists(const struct node *n, const struct call *c) {
  PyObject *lists = PyList_New(n->size);
  for (int r = 0; lists && r < n->size; r++) {
    PyObject *its = r != n->rank && call_goes(c, r, n->rank) ? PyList_New(0) : Py_NewRef(Py_None);
    if (!its || PyList_SetItem(lists, r, its)) Py_CLEAR(lists);
  }
  return lists;
}

/* share(verb, root, signature, parcels, memory): what each rank gives this one; None: nothing */
PyObject *node_share(PyObject *me, PyObject *const *a, Py_ssize_t count) {
  Node *self = (Node *)me;
  struct node *n = &self->node;
  if (count != 5) return PyErr_Format(PyExc_TypeError, "share takes a verb, root, signature, parcels and memory");
  struct call c = {.verb = (int)PyLong_AsLong(a[0])};
  if (!PyErr_Occurred()) c.root = (int)PyLong_AsLong(a[1]);
  if (!PyErr_Occurred()) c.signature = read_signature(a[2]);
  struct given g = {0};
  if (PyErr_Occurred()) return NULL;
  const Py_ssize_t most = !call_gives(n, &c) ? 0 : verb_is(c.verb, INPUT_BLOCKS) ? n->size : 1;
  struct taken taken = {.lists = empty_lists(n, &c), .memory = a[4]};
  int bad = !taken.lists || look_at(a[3], most, &g) || enter_call(self) ? -1 : 0;
  if (!bad) {
    bad = share_run(n, &c, g.parts, g.counts, memory_of, &taken);
    self->busy = 0;
  }
  PyBuffer_Release(&taken.view);
  let_go(&g);
  if (!bad) return taken.lists;
  Py_XDECREF(taken.lists);
  if (bad == NODE_NO_ROOM) return Py_NewRef(Py_NotImplemented);
  return PyErr_Occurred() ? NULL : PyErr_NoMemory();
}

/* tell(signature, said): come to a call with a few bytes, as many on each rank, and hear those of all, in order. */
PyObject *node_tell(PyObject *me, PyObject *const *a, Py_ssize_t count) {
  Node *self = (Node *)me;
  struct node *n = &self->node;
  char *said;
  Py_ssize_t nbytes;
  if (count != 2) return PyErr_Format(PyExc_TypeError, "tell takes a signature and bytes");
  uint64_t signature = read_signature(a[0]);
  if (PyErr_Occurred() || PyBytes_AsStringAndSize(a[1], &said, &nbytes)) return NULL;
  if ((size_t)nbytes > NODE_INLINE) return PyErr_Format(PyExc_ValueError, "at most %d bytes", NODE_INLINE);
  if (enter_call(self)) return NULL;
  PyObject *heard = node_arrive_and_wait(n, signature, said, (size_t)nbytes) ? NULL : PyList_New(n->size);
  for (int r = 0; heard && r < n->size; r++) {
    PyObject *its = PyBytes_FromStringAndSize((const char *)node_cell(n, r, n->calls)->data, nbytes);
    if (!its || PyList_SetItem(heard, r, its)) Py_CLEAR(heard);
  }
  self->busy = 0;
  return heard;
}
