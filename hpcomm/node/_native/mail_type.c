/* mail_type.c: Message, and what a Node has for messages (mail.c). They need neither a call of the node nor its turn: one
   thread may wait for a message while another one is in a collective.

   A message under way holds its array, and the node's mailbox holds the message. */
#include "module.h"

#include <errno.h>
#include <stdlib.h>
#include <structmember.h>

typedef struct {
  PyObject_HEAD struct message message;
  Node *node;
  PyObject *verb, *x, *shown; /* x has the memory; shown is what the program calls so */
} Message;
PyTypeObject *message_type;

static PyObject *word(int is_send) {
  static PyObject *words[2];
  if (!words[is_send]) words[is_send] = PyUnicode_InternFromString(is_send ? "send" : "recv");
  return words[is_send];
}

/* Let go of messages that are complete; whatever runs then finds none of them in a list. */
static void drop_over(struct mailbox *b) {
  for (struct message *m; (m = b->over.first);) {
    b->over.first = m->next;
    Py_DECREF((PyObject *)(void *)((char *)m - offsetof(Message, message)));
  }
}

static struct mailbox *mailbox_of(Node *self) { /* NULL: an exception */
  if (!is_ours(self)) return NULL;
  if (!self->mail && !(self->mail = mail_open(&self->node))) PyErr_NoMemory();
  return self->mail;
}

void close_mail(Node *self) {
  if (!self->mail || !self->mail->place) return;
  mail_close(self->mail);
  drop_over(self->mail);
}

static Message *new_message(Node *node, int is_send, PyObject *x, PyObject *shown, const struct message *said) {
  Message *made = new_object(message_type);
  if (!made) return NULL;
  made->message = *said;
  made->node = (Node *)Py_NewRef((PyObject *)node);
  made->verb = Py_NewRef(word(is_send));
  made->x = Py_NewRef(x);
  made->shown = Py_NewRef(shown);
  return made;
}
static void message_dealloc(PyObject *me) {
  Message *self = (Message *)me;
  Py_XDECREF((PyObject *)self->node);
  Py_XDECREF(self->verb);
  Py_XDECREF(self->x);
  Py_XDECREF(self->shown);
  free_object(me);
}

/* x, the other rank, a tag, and what to show in place of x. 1; 0: x is not taken; -1: an exception. */
static int read_arguments(const Node *self, PyObject *const *a, Py_ssize_t n, int is_send, struct message *m) {
  struct array x;
  if (n < 3 || n > 4) return PyErr_Format(PyExc_TypeError, "x, a rank, a tag, and what is shown for x"), -1;
  const long peer = !is_send && a[1] == Py_None ? MAIL_ANYBODY : PyLong_AsLong(a[1]);
  m->tag = PyErr_Occurred() ? 0 : (uint64_t)PyLong_AsLongLong(a[2]);
  if (PyErr_Occurred()) return -1;
  if (peer >= self->node.size || (peer < 0 && a[1] != Py_None))
    return PyErr_Format(PyExc_ValueError, "rank %ld of %d", peer, self->node.size), -1;
  const int takes = array_look(a[0], !is_send, &x);
  if (takes != 1) return takes;
  m->at = x.at;
  m->nbytes = x.nbytes;
  m->peer = (int)peer;
  return 1;
}

/* isend(x, dest, tag, shown=x): None if x may be changed again, else a Message; NotImplemented: such arrays are not taken */
PyObject *node_isend(PyObject *me, PyObject *const *a, Py_ssize_t n) {
  Node *self = (Node *)me;
  struct mailbox *b = mailbox_of(self);
  struct message m = {0};
  const int takes = b ? read_arguments(self, a, n, 1, &m) : -1;
  if (takes != 1) return takes ? NULL : Py_NewRef(Py_NotImplemented);
  if (!mail_connect(b, m.peer)) {
    errno = ENOSPC;
    return PyErr_SetFromErrno(PyExc_OSError);
  }
  if (mail_send_now(b, m.peer, m.tag, m.at, m.nbytes)) Py_RETURN_NONE;
  Message *made = new_message(self, 1, a[0], n > 3 ? a[3] : a[0], &m);
  if (!made) return NULL;
  Py_INCREF((PyObject *)made); /* the mailbox's */
  mail_send(b, &made->message);
  mail_move(b);
  drop_over(b);
  return (PyObject *)made;
}

/* irecv(x, source, tag, shown=x): a Message; source None: from anybody; NotImplemented: such arrays are not taken */
PyObject *node_irecv(PyObject *me, PyObject *const *a, Py_ssize_t n) {
  Node *self = (Node *)me;
  struct mailbox *b = mailbox_of(self);
  struct message m = {0};
  const int takes = b ? read_arguments(self, a, n, 0, &m) : -1;
  if (takes != 1) return takes ? NULL : Py_NewRef(Py_NotImplemented);
  Message *made = new_message(self, 0, a[0], n > 3 ? a[3] : a[0], &m);
  if (!made) return NULL;
  Py_INCREF((PyObject *)made);
  mail_receive(b, &made->message);
  drop_over(b);
  return (PyObject *)made;
}

/* Move what is under way, here and from others: so that nobody's queue stays full while this rank does something else. */
PyObject *node_move_messages(PyObject *me, PyObject *none) {
  Node *self = (Node *)me;
  (void)none;
  if (!is_ours(self)) return NULL;
  if (!self->mail && !node_peek(&node_mine(&self->node)->mail.inbox)) Py_RETURN_NONE;
  struct mailbox *b = mailbox_of(self);
  if (!b) return NULL;
  mail_move(b);
  drop_over(b);
  Py_RETURN_NONE;
}

static const struct message *unasked(const struct mailbox *b, long rank) {
  const struct message *m = b->unexpected.first;
  while (m && (m->into || (m->peer != rank && rank != MAIL_ANYBODY))) m = m->next;
  return m;
}

/* untaken(source): source and tag of a message that nobody has asked for, the first of this source if there is one; or None */
PyObject *node_untaken(PyObject *me, PyObject *source) {
  const struct mailbox *b = ((Node *)me)->mail;
  const long rank = source == Py_None ? MAIL_ANYBODY : PyLong_AsLong(source);
  if (PyErr_Occurred()) return NULL;
  const struct message *m = b ? unasked(b, rank) : NULL;
  if (b && !m) m = unasked(b, MAIL_ANYBODY);
  if (!m) Py_RETURN_NONE;
  return Py_BuildValue("(iL)", m->peer, (long long)m->tag);
}

static PyObject *message_done(PyObject *me, PyObject *none) {
  Message *self = (Message *)me;
  (void)none;
  if (!self->message.state) {
    if (!is_ours(self->node)) return NULL;
    mail_move(self->node->mail);
    drop_over(self->node->mail);
  }
  return PyBool_FromLong(self->message.state);
}

/* wait(seconds): whether it was complete by then. What the hook raises ends the wait, not the message. */
static PyObject *message_wait(PyObject *me, PyObject *given) {
  Message *self = (Message *)me;
  const double seconds = PyFloat_AsDouble(given);
  if (PyErr_Occurred()) return NULL;
  if (self->message.state) Py_RETURN_TRUE;
  if (!is_ours(self->node)) return NULL;
  PyObject *segment = Py_NewRef((PyObject *)self->node->segment), *hook = Py_XNewRef(self->node->hook); /* it may be closed */
  PyObject *peer = self->message.peer < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(self->message.peer);
  PyObject *tag = PyLong_FromLongLong((int64_t)self->message.tag);
  struct doing now = {(PyObject *)self->node, self->verb, self->shown, peer, tag, 0}, *before = begin_call(&now);
  struct node n = {.host = &python_host, .program = hook, .spins = self->node->node.spins};
  const int bad = mail_wait(self->node->mail, &self->message, &n, seconds);
  done_call(before);
  drop_over(self->node->mail);
  Py_DECREF(segment);
  Py_XDECREF(hook);
  Py_XDECREF(peer);
  Py_XDECREF(tag);
  if (bad == -WHY_SAID) return NULL;
  return PyBool_FromLong(self->message.state);
}

/* cancel(): whether a receive was taken back; else it is complete, or a message for it is being copied. */
static PyObject *message_cancel(PyObject *me, PyObject *none) {
  Message *self = (Message *)me;
  (void)none;
  if (self->verb != word(0) || self->message.state) Py_RETURN_FALSE;
  if (!is_ours(self->node)) return NULL;
  const int is_back = mail_take_back(self->node->mail, &self->message);
  drop_over(self->node->mail);
  return PyBool_FromLong(is_back);
}

static PyMethodDef message_methods[] = {{"done", message_done, METH_NOARGS, NULL},
                                        {"cancel", message_cancel, METH_NOARGS, NULL},
                                        {"wait", message_wait, METH_O, NULL},
                                        {0}};
static PyMemberDef message_members[] = {
    {"source", T_INT, offsetof(Message, message.peer), READONLY, NULL},
    {"state", T_INT, offsetof(Message, message.state), READONLY, NULL},
    {"nbytes", T_ULONGLONG, offsetof(Message, message.nbytes), READONLY, NULL},
    {"came", T_ULONGLONG, offsetof(Message, message.came), READONLY, NULL},
    {0}};
static PyType_Slot message_slots[] = {{Py_tp_dealloc, message_dealloc},
                                      {Py_tp_methods, message_methods},
                                      {Py_tp_members, message_members},
                                      {0, NULL}};
PyType_Spec message_spec = {"hpcomm.node._native.core.Message", sizeof(Message), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, message_slots};
