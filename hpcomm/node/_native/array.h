/* array.h: one look at an array of any library. Needs Python, knows no library by name but numpy and torch. */
#ifndef HPCOMM_ARRAY_H
#define HPCOMM_ARRAY_H
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "node.h"

enum { ARRAY_NUMPY, ARRAY_TORCH }; /* exactly of these types, whose results are of them too */
enum { ARRAY_AXES = LAYOUT_AXES };

struct array {
  char *at;
  size_t count, nbytes;
  int dtype, kind, axes;
  int64_t shape[ARRAY_AXES];
  struct layout lies; /* of one that does not lie in order; else only axes, 0, is known */
};

int array_look(PyObject *, int writable, struct array *); /* 1; 0: not one that the core takes; -1: an exception */
int array_look_any(PyObject *, int writable, struct array *); /* the same, also of one that does not lie in order */
int array_as(struct array *, int dtype); /* its bytes are elements of this type; 0: they cannot be */
int array_know_numpy(PyObject *numpy);   /* from now on its arrays are known by their type; -1: an exception */
int array_know_ml_dtypes(PyObject *ml_dtypes); /* the same of its bfloat16, where numpy is known; -1: an exception */
int array_know_torch(PyObject *torch);   /* the same of its tensors; 0: they have no exchange table, and are not taken */
/* A new array like x; NULL and no exception: it could not be made. *at: its memory. */
PyObject *array_like(PyObject *x, const struct array *, int axes, const int64_t *shape, char **at);
#endif
