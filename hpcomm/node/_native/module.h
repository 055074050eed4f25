/* module.h: the objects of the core as Python has them, and what their files need of one another. */
#ifndef HPCOMM_MODULE_H
#define HPCOMM_MODULE_H
#include "array.h"

#include "node.h"

typedef struct {
  PyObject_HEAD struct segment segment;
  char name[256];
} Segment;
typedef struct {
  PyObject_HEAD struct node node;
  Segment *segment; /* NULL: closed */
  PyObject *hook;   /* or NULL */
  int busy;         /* a thread of ours is in a call, */
  int carries;      /* or carries out those in the background: */
  unsigned long thread; /* this one */
  uint64_t looked;  /* ns: when the hook was called last for one of those */
  int is_closing;   /* close() has been called, and some are still in the background */
  int owner;        /* `forks` when it was made: a child process may not use it */
  uint64_t keeps;   /* number of the last call whose result is kept below; 0: none is */
  struct mailbox *mail; /* from its first message on, or NULL */
  PyObject *kept[NODE_CELLS]; /* results of long calls that this rank gave up, by number: others may write to them still */
} Node;
typedef struct {
  PyObject_HEAD struct channel channel;
  Segment *segment;
  PyObject *hook;
  PyObject *verb; /* for which it is used, in words */
  int busy;
  int views; /* of its boxes, which somebody holds */
  int owner;
} Channel;

extern const struct node_host python_host; /* module.c */
extern int node_forks; /* since the first process: what asks for its pid at each call costs as much */
typedef struct { /* request_type.c */
  PyObject_HEAD struct request request;
  Node *node;                 /* NULL: it is over */
  PyObject *x, *result, *error;
} Request;

struct arguments { /* of a method, as they stand there; NULL: it has none, or was given none */
  PyObject *x, *op, *root, *out, *dtype;
};
/* What a call means, and its result; 1: the core takes it; 0: not; -1: an exception. module.c */
int prepare_call(Node *, const struct arguments *, int later, struct call *, struct array *x, struct array *out, PyObject **result);
void keep_result(Node *, PyObject *result, uint64_t number); /* module.c: of a call that this rank gave up */
int depart(Node *);       /* module.c: 1 if its ranks have all left now */
int end_requests(Node *);    /* request_type.c: all that are in the background; 0, or an exception */
PyObject *node_begin(PyObject *, PyObject *const *, Py_ssize_t);
int enter_call(Node *);   /* module.c: 0, or an exception: this thread may not */
int refuse_thread(Node *); /* module.c: an exception: another thread is in a call */
int is_ours(const Node *); /* module.c: 0: an exception: closed, or the parent process's */
uint64_t read_signature(PyObject *); /* module.c: or an exception: more than 63 bits */
PyObject *node_share(PyObject *, PyObject *const *, Py_ssize_t); /* parcels.c */
PyObject *node_tell(PyObject *, PyObject *const *, Py_ssize_t);
PyObject *node_isend(PyObject *, PyObject *const *, Py_ssize_t); /* mail_type.c */
PyObject *node_irecv(PyObject *, PyObject *const *, Py_ssize_t);
PyObject *node_move_messages(PyObject *, PyObject *);
PyObject *node_untaken(PyObject *, PyObject *);
void close_mail(Node *);

struct doing { /* present.c: what a thread is in */
  PyObject *owner, *verb, *x, *by, *with;
  uint64_t count;
};
struct thread { /* and which one is */
  unsigned long ident;
  uint64_t count;       /* of its calls */
  struct doing message; /* owner NULL: none */
  struct doing *call;   /* of the core's, or NULL; it stands on its stack */
  struct thread *next;
};
#ifdef __GLIBC__
#define QUICK __attribute__((tls_model("initial-exec"))) /* one load; no other libc has room for that in what is loaded late */
#else
#define QUICK
#endif
extern __thread struct thread *this_one QUICK;
struct thread *first_seen(void); /* NULL: an exception */

/* A call of the core begins; returns what the thread was in before, which is for done_call(). */
static inline struct doing *begin_call(struct doing *now) {
  struct thread *t = this_one ? this_one : first_seen();
  if (!t) return PyErr_Clear(), NULL;
  struct doing *before = t->call;
  now->count = ++t->count;
  t->call = now;
  return before;
}
static inline void done_call(struct doing *before) {
  if (this_one) this_one->call = before;
}
extern PyObject *verb_words[]; /* module.c: names of verbs, as present.c has them */
extern PyMethodDef present_functions[];
extern PyTypeObject *segment_type, *message_type, *request_type;
extern PyType_Spec segment_spec, channel_spec, message_spec, request_spec;

static inline void *new_object(PyTypeObject *type) { return ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0); }
static inline void free_object(void *self) {
  PyTypeObject *type = Py_TYPE((PyObject *)self);
  ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}
#endif
