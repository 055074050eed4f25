/* segment_type.c: Segment, a file of shared memory under a name that is nobody else's. */
#include "module.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static int open_new(Segment *s) { /* a name that nobody can guess, which is nobody's yet */
  unsigned char drawn[16];
  if (getrandom(drawn, sizeof drawn, 0) != sizeof drawn) return -1;
  int at = snprintf(s->name, sizeof s->name, "/dev/shm/hpcomm-%u-", (unsigned)geteuid());
  for (size_t i = 0; i < sizeof drawn; i++) at += snprintf(s->name + at, sizeof s->name - (size_t)at, "%02x", drawn[i]);
  return open(s->name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
}

static int ours_alone(int file) { /* it, if it is a file of this user alone; else -1, and it is closed */
  struct stat about;
  if (file < 0) return -1;
  if (!fstat(file, &about) && S_ISREG(about.st_mode) && about.st_uid == geteuid() && !(about.st_mode & 077))
    return file;
  close(file);
  errno = EPERM;
  return -1;
}

static int open_known(Segment *s, const char *name) { /* no link to something else */
  if (strlen(name) >= sizeof s->name) return errno = ENAMETOOLONG, -1;
  strcpy(s->name, name);
  return ours_alone(open(name, O_RDWR | O_NOFOLLOW | O_CLOEXEC));
}

static PyObject *segment_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  static char *words[] = {"nbytes", "name", "file", NULL};
  unsigned long long nbytes;
  const char *name = NULL;
  int open_file = -1; /* of who looks on: a rank's, whose name is gone */
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "K|zi", words, &nbytes, &name, &open_file)) return NULL;
  Segment *s = new_object(type);
  if (!s) return NULL;
  nbytes = segment_bytes(nbytes);
  const int create = !name && open_file < 0;
  const int file = s->segment.file = create ? open_new(s) : name ? open_known(s, name) : ours_alone(fcntl(open_file, F_DUPFD_CLOEXEC, 0));
  const int fails = file < 0 || (create && ftruncate(file, (off_t)nbytes));
  const int bad = fails ? errno : segment_open(&s->segment, file, nbytes, create);
  if (!bad) return (PyObject *)s;
  if (create) unlink(s->name);
  errno = bad;
  PyErr_SetFromErrnoWithFilename(PyExc_OSError, s->name);
  Py_DECREF(s);
  return NULL;
}

static void segment_dealloc(PyObject *self) {
  Segment *s = (Segment *)self;
  segment_close(&s->segment);
  if (s->segment.file >= 0) close(s->segment.file);
  free_object(self);
}

static PyObject *offset_of(Segment *s, void *at) {
  if (!at) Py_RETURN_NONE;
  return PyLong_FromSize_t((size_t)((char *)at - (char *)s->segment.head));
}
static PyObject *segment_reserve_place(PyObject *self, PyObject *const *a, Py_ssize_t n) { /* ranks, their domains */
  Segment *s = (Segment *)self;
  if (n < 1 || n > 2) return PyErr_Format(PyExc_TypeError, "how many ranks, and where they run");
  long ranks = PyLong_AsLong(a[0]);
  char *domains = NULL;
  Py_ssize_t given = ranks;
  if (PyErr_Occurred() || (n > 1 && PyBytes_AsStringAndSize(a[1], &domains, &given))) return NULL;
  if (given != ranks) return PyErr_Format(PyExc_ValueError, "%zd domains of %ld ranks", given, ranks);
  if (ranks < 1) return PyErr_Format(PyExc_ValueError, "%ld ranks", ranks);
  if (ranks > NODE_RANKS) Py_RETURN_NONE; /* not refused: one rank asks, and the others wait for what it tells them */
  return offset_of(s, node_reserve(&s->segment, (int)ranks, (const unsigned char *)domains));
}
static PyObject *segment_reserve_channel(PyObject *self, PyObject *capacity) {
  Segment *s = (Segment *)self;
  size_t nbytes = PyLong_AsSize_t(capacity);
  if (PyErr_Occurred()) return NULL;
  return offset_of(s, channel_reserve(&s->segment, nbytes));
}

/* Words: memory for whatever Python has to tell other ranks. Stores are releases, loads are acquires. */
static node_word *word_of(Segment *s, PyObject *given, size_t count) { /* the first of so many; NULL: an exception */
  const size_t at = PyLong_AsSize_t(given);
  if (PyErr_Occurred()) return NULL;
  if (at % 8 == 0 && at >= NODE_UNIT && at <= s->segment.nbytes && count <= (s->segment.nbytes - at) / 8)
    return (node_word *)(void *)((char *)s->segment.head + at);
  PyErr_Format(PyExc_ValueError, "no %zu words begin at %zu", count, at);
  return NULL;
}
static PyObject *segment_reserve_words(PyObject *self, PyObject *count) {
  Segment *s = (Segment *)self;
  uint64_t units;
  const size_t words = PyLong_AsSize_t(count);
  void *at = PyErr_Occurred() || words > s->segment.nbytes / 8 ? NULL : segment_reserve(&s->segment, (struct parts){.head = words * 8}, &units);
  if (at) memset(at, 0, words * 8);
  return PyErr_Occurred() ? NULL : offset_of(s, at);
}
static PyObject *segment_note_records(PyObject *self, PyObject *const *a, Py_ssize_t n) { /* at, how many words */
  Segment *s = (Segment *)self;
  const size_t count = n == 2 ? PyLong_AsSize_t(a[1]) : 0;
  if (n != 2) return PyErr_Format(PyExc_TypeError, "a place, and how many words");
  if (PyErr_Occurred() || !word_of(s, a[0], count)) return NULL;
  node_post(&s->segment.head->record_words, count);
  node_post(&s->segment.head->records, PyLong_AsSize_t(a[0]));
  Py_RETURN_NONE;
}
static PyObject *segment_records(PyObject *self, PyObject *none) { /* the same */
  struct node_head *head = ((Segment *)self)->segment.head;
  const uint64_t at = node_load(&head->records); /* before the other */
  return (void)none, Py_BuildValue("(KK)", (unsigned long long)at, (unsigned long long)node_load(&head->record_words));
}
static PyObject *segment_load(PyObject *self, PyObject *given) {
  const node_word *at = word_of((Segment *)self, given, 1);
  return at ? PyLong_FromLongLong((int64_t)node_load(at)) : NULL;
}
static PyObject *change(PyObject *self, PyObject *const *a, Py_ssize_t n, int adds) { /* at, value: what stands there */
  if (n != 2) return PyErr_Format(PyExc_TypeError, "a place and a value");
  node_word *at = word_of((Segment *)self, a[0], 1);
  const uint64_t value = at ? PyLong_AsUnsignedLongLongMask(a[1]) : 0;
  if (!at || PyErr_Occurred()) return NULL;
  uint64_t stands = value, before = node_peek(at);
  if (adds) /* not by atomic_fetch_add: gcc 12 adds what stood there to itself, not to the value, with -O1 and -O2 */
    while (!atomic_compare_exchange_weak(at, &before, stands = before + value)) continue;
  else
    node_post(at, value);
  return PyLong_FromLongLong((int64_t)stands);
}
static PyObject *segment_store(PyObject *self, PyObject *const *a, Py_ssize_t n) { return change(self, a, n, 0); }
static PyObject *segment_add(PyObject *self, PyObject *const *a, Py_ssize_t n) { return change(self, a, n, 1); }
static PyObject *segment_load_bytes(PyObject *self, PyObject *const *a, Py_ssize_t n) { /* at, of how many words */
  const size_t count = n == 2 ? PyLong_AsSize_t(a[1]) : 0;
  const node_word *at = n == 2 && !PyErr_Occurred() ? word_of((Segment *)self, a[0], count) : NULL;
  PyObject *made = at ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count * 8) : NULL;
  for (size_t i = 0; made && i < count; i++) {
    const uint64_t word = node_load(at + i);
    memcpy(PyBytes_AsString(made) + 8 * i, &word, 8);
  }
  return made || PyErr_Occurred() ? made : PyErr_Format(PyExc_TypeError, "a place, and how many");
}
static PyObject *segment_store_bytes(PyObject *self, PyObject *const *a, Py_ssize_t n) { /* at, bytes: of whole words */
  if (n != 2 || !PyBytes_Check(a[1]) || PyBytes_Size(a[1]) % 8)
    return PyErr_Format(PyExc_TypeError, "a place, and bytes of whole words");
  const size_t count = (size_t)PyBytes_Size(a[1]) / 8;
  node_word *at = word_of((Segment *)self, a[0], count);
  for (size_t i = 0; at && i < count; i++) {
    uint64_t word;
    memcpy(&word, PyBytes_AsString(a[1]) + 8 * i, 8);
    node_post(at + i, word);
  }
  return at ? Py_NewRef(Py_None) : NULL;
}
static PyObject *segment_fileno(PyObject *self, PyObject *none) { /* for locks, which tell who lives */
  return (void)none, PyLong_FromLong(((Segment *)self)->segment.file);
}

/* memoryview(segment): all of it. For arrays that the program itself writes, in words that were reserved */
static int segment_view(PyObject *self, Py_buffer *view, int flags) {
  struct segment *s = &((Segment *)self)->segment;
  return PyBuffer_FillInfo(view, self, s->head, (Py_ssize_t)s->nbytes, 0, flags);
}

static PyObject *segment_unlink(PyObject *self, PyObject *none) {
  Segment *s = (Segment *)self;
  (void)none;
  if (unlink(s->name) && errno != ENOENT) return PyErr_SetFromErrnoWithFilename(PyExc_OSError, s->name);
  Py_RETURN_NONE;
}
static PyObject *segment_name(PyObject *self, void *none) {
  (void)none;
  return PyUnicode_FromString(((Segment *)self)->name);
}
static PyObject *segment_nbytes(PyObject *self, void *none) {
  (void)none;
  return PyLong_FromSize_t(((Segment *)self)->segment.nbytes);
}

#define FAST(name) {#name, (PyCFunction)(void (*)(void))segment_##name, METH_FASTCALL, NULL}
static PyMethodDef segment_methods[] = {{"reserve", (PyCFunction)(void (*)(void))segment_reserve_place, METH_FASTCALL, NULL},
                                        {"reserve_channel", segment_reserve_channel, METH_O, NULL},
                                        {"reserve_words", segment_reserve_words, METH_O, NULL},
                                        {"load", segment_load, METH_O, NULL},
                                        FAST(note_records),
                                        {"records", segment_records, METH_NOARGS, NULL},
                                        FAST(store),
                                        FAST(add),
                                        FAST(load_bytes),
                                        FAST(store_bytes),
                                        {"fileno", segment_fileno, METH_NOARGS, NULL},
                                        {"unlink", segment_unlink, METH_NOARGS, NULL},
                                        {0}};
static PyGetSetDef segment_attributes[] = {
    {"name", segment_name, NULL, NULL, NULL}, {"nbytes", segment_nbytes, NULL, NULL, NULL}, {0}};
static PyType_Slot segment_slots[] = {{Py_tp_new, segment_new},
                                      {Py_tp_dealloc, segment_dealloc},
                                      {Py_bf_getbuffer, segment_view},
                                      {Py_tp_methods, segment_methods},
                                      {Py_tp_getset, segment_attributes},
                                      {0, NULL}};
PyType_Spec segment_spec = {"hpcomm.node._native.core.Segment", sizeof(Segment), 0, Py_TPFLAGS_DEFAULT, segment_slots};
