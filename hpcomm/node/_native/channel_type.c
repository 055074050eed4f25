/* channel_type.c: Channel, from one rank to another (channel.c). */
#include "module.h"

static PyObject *channel_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  static char *words[] = {"segment", "at", "peer", "hook", "spins", "verb", NULL};
  Segment *segment;
  unsigned long long offset;
  int peer, spins = 2000;
  PyObject *hook = Py_None, *verb = NULL;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!Ki|OiU", words, segment_type, &segment, &offset, &peer, &hook,
                                   &spins, &verb))
    return NULL;
  if (offset + sizeof(struct node_channel) > segment->segment.nbytes || offset % NODE_UNIT || offset == 0)
    return PyErr_Format(PyExc_ValueError, "no channel begins at %llu", offset);
  Channel *self = new_object(type);
  if (!self) return NULL;
  self->segment = (Segment *)Py_NewRef((PyObject *)segment);
  self->hook = hook == Py_None ? NULL : Py_NewRef(hook);
  self->verb = verb ? Py_NewRef(verb) : PyUnicode_FromString("exchange");
  self->owner = node_forks;
  self->channel.node = (struct node){.host = &python_host, .program = self->hook, .spins = spins};
  channel_attach(&self->channel, &segment->segment, (struct node_channel *)((char *)segment->segment.head + offset),
                 peer);
  return (PyObject *)self;
}
static int is_open(const Channel *self) { /* and ours; 0: an exception */
  if (self->segment && self->owner == node_forks) return 1;
  PyErr_SetString(PyExc_ValueError, self->segment ? "this channel is the parent process's" : "this channel is closed");
  return 0;
}
static int is_free(const Channel *self) { /* nobody waits for its next box; 0: an exception */
  if (!self->busy) return 1;
  PyErr_SetString(PyExc_ValueError, "another wait for a box of this channel is under way");
  return 0;
}
static int channel_clear(PyObject *me) {
  Channel *self = (Channel *)me;
  Segment *segment = self->segment;
  if (self->busy || self->views) return 0;
  self->segment = NULL;
  if (segment && self->owner == node_forks) channel_leave(&segment->segment, self->channel.at);
  Py_XDECREF((PyObject *)segment);
  self->channel.node.program = NULL;
  Py_CLEAR(self->hook);
  Py_CLEAR(self->verb);
  return 0;
}
static int channel_traverse(PyObject *me, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(me));
  Py_VISIT((PyObject *)((Channel *)me)->segment);
  Py_VISIT(((Channel *)me)->hook);
  return 0;
}
static void channel_dealloc(PyObject *me) {
  PyObject_GC_UnTrack(me);
  channel_clear(me);
  free_object(me);
}
static PyObject *channel_close(PyObject *me, PyObject *none) {
  (void)none;
  if (!is_free((Channel *)me)) return NULL;
  if (((Channel *)me)->views) return PyErr_Format(PyExc_BufferError, "there are views of this channel's boxes");
  channel_clear(me);
  Py_RETURN_NONE;
}

/* memoryview(channel): both boxes, one behind the other; it keeps the channel open */
static int channel_view(PyObject *me, Py_buffer *view, int flags) {
  Channel *self = (Channel *)me;
  view->obj = NULL;
  if (!is_open(self)) return -1;
  struct node_channel *at = self->channel.at;
  if (PyBuffer_FillInfo(view, me, at + 1, (Py_ssize_t)(2 * node_peek(&at->capacity)), 0, flags)) return -1;
  return self->views++, 0;
}
static void channel_view_ends(PyObject *me, Py_buffer *view) { (void)view, ((Channel *)me)->views--; }

/* Whether the next box is ours; it is waited for if we may. */
static PyObject *box_of(PyObject *me, PyObject *wait, int to_fill) {
  Channel *self = (Channel *)me;
  int may_wait = PyObject_IsTrue(wait);
  if (may_wait < 0 || !is_open(self) || !is_free(self)) return NULL;
  if (!may_wait) return PyBool_FromLong(channel_ready(&self->channel, to_fill) != NULL);
  self->busy = 1;
  struct doing now = {.owner = me, .verb = self->verb}, *before = begin_call(&now);
  char *at = channel_box(&self->channel, to_fill);
  done_call(before);
  self->busy = 0;
  return at ? Py_NewRef(Py_True) : NULL;
}
static PyObject *channel_empty_box(PyObject *me, PyObject *wait) { return box_of(me, wait, 1); }
static PyObject *channel_full_box(PyObject *me, PyObject *wait) { return box_of(me, wait, 0); }
/* Hand the next box over, filled or free. */
static PyObject *hand_over(PyObject *me, int to_fill) {
  Channel *self = (Channel *)me;
  if (!is_open(self) || !is_free(self)) return NULL;
  if (!channel_ready(&self->channel, to_fill))
    return PyErr_Format(PyExc_ValueError, "the box is the %s's", to_fill ? "receiver" : "sender");
  to_fill ? channel_fill(&self->channel) : channel_free(&self->channel);
  Py_RETURN_NONE;
}
static PyObject *channel_fill_box(PyObject *me, PyObject *none) { return (void)none, hand_over(me, 1); }
static PyObject *channel_free_box(PyObject *me, PyObject *none) { return (void)none, hand_over(me, 0); }

static PyObject *channel_hook(PyObject *me, void *none) {
  PyObject *hook = ((Channel *)me)->hook;
  return (void)none, Py_NewRef(hook ? hook : Py_None);
}

static PyGetSetDef channel_fields[] = {{"hook", channel_hook, NULL, NULL, NULL}, {0}};
static PyMethodDef channel_methods[] = {
    {"empty_box", channel_empty_box, METH_O, NULL},
    {"full_box", channel_full_box, METH_O, NULL},
    {"fill", channel_fill_box, METH_NOARGS, NULL},
    {"free", channel_free_box, METH_NOARGS, NULL},
    {"close", channel_close, METH_NOARGS, NULL},
    {0}};
static PyType_Slot channel_slots[] = {{Py_tp_new, channel_new},
                                      {Py_tp_dealloc, channel_dealloc},
                                      {Py_tp_traverse, channel_traverse},
                                      {Py_tp_clear, channel_clear},
                                      {Py_bf_getbuffer, channel_view},
                                      {Py_bf_releasebuffer, channel_view_ends},
                                      {Py_tp_methods, channel_methods},
                                      {Py_tp_getset, channel_fields},
                                      {0, NULL}};
PyType_Spec channel_spec = {"hpcomm.node._native.core.Channel", sizeof(Channel), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, channel_slots};
