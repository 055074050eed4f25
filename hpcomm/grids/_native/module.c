/* module.c: `geometry`, the hot part of mappings as Python sees it (geometry.pyi has the types). */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdlib.h>

#include "search.h"

/* Cells in a contiguous array of float64: (cells, corners, 2 or 3), or where these are allowed bounds, (cells, 4). */
static int look(PyObject *x, Py_buffer *to, struct cells *cells, int may_be_bounds) {
  if (PyObject_GetBuffer(x, to, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS)) return 0;
  const char *format = to->format ? to->format : "B", *wrong = NULL;
  const Py_ssize_t *n = to->shape;
  const int is_bounds = to->ndim == 2;
  if (format[0] != 'd' || format[1] || (to->ndim != 3 && !(is_bounds && may_be_bounds)))
    wrong = "an array of float64 of 3 axes is needed, or where rectangles are allowed of 2";
  else if (is_bounds && n[1] != BOUNDS)
    wrong = "a rectangle has 4 bounds";
  else if (!is_bounds && (n[1] < 1 || (n[2] != PLANE && n[2] != SPHERE)))
    wrong = "a polygon has one corner or more, each of 2 numbers on a plane, 3 on the sphere";
  if (!wrong) {
    *cells = (struct cells){to->buf, (size_t)n[0], is_bounds ? 1 : (size_t)n[1], (int)n[to->ndim - 1]};
    return 1;
  }
  PyErr_SetString(PyExc_ValueError, wrong);
  PyBuffer_Release(to);
  return 0;
}

/* What `find` makes of two arrays of cells. */
static PyObject *of_both(PyObject *const given[2], PyObject *(*find)(const struct cells *, int), int is_wanted) {
  Py_buffer of[2];
  struct cells cells[2];
  PyObject *made = NULL;
  if (!look(given[0], of, cells, 1)) return NULL;
  if (look(given[1], of + 1, cells + 1, 1)) {
    made = find(cells, is_wanted);
    PyBuffer_Release(of + 1);
  }
  PyBuffer_Release(of);
  return made;
}

static PyObject *found(const struct cells *cells, int has_moments) {
  const int a = cells[0].wide, b = cells[1].wide;
  if (a == b ? a == BOUNDS : a + b != SPHERE + BOUNDS) {
    PyErr_SetString(PyExc_ValueError, "both lie on a plane, or both on the sphere, and at most one are rectangles");
    return NULL;
  }
  struct overlaps all = {0};
  int failed;
  Py_BEGIN_ALLOW_THREADS;
  failed = find_overlaps(&all, cells, cells + 1, has_moments);
  Py_END_ALLOW_THREADS;
  PyObject *made = failed ? PyErr_NoMemory()
                          : PyByteArray_FromStringAndSize((char *)all.pairs, (Py_ssize_t)(all.count * sizeof *all.pairs));
  free(all.pairs);
  return made;
}

static PyObject *overlaps(PyObject *module, PyObject *arguments) {
  PyObject *given[2];
  int has_moments;
  (void)module;
  return PyArg_ParseTuple(arguments, "OOp", given, given + 1, &has_moments) ? of_both(given, found, has_moments) : NULL;
}

static PyObject *located(const struct cells *cells, int unused) {
  (void)unused;
  if (cells[0].wide != SPHERE || cells[1].wide != SPHERE || cells[0].corners != 1) {
    PyErr_SetString(PyExc_ValueError, "points of one corner are needed, and polygons, both of 3 numbers");
    return NULL;
  }
  PyObject *made = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(cells[0].count * sizeof(int64_t)));
  if (!made) return NULL;
  int64_t *which = (int64_t *)PyByteArray_AsString(made);
  int failed;
  Py_BEGIN_ALLOW_THREADS;
  failed = find_first(which, cells, cells + 1);
  Py_END_ALLOW_THREADS;
  if (!failed) return made;
  Py_DECREF(made);
  return PyErr_NoMemory();
}

static PyObject *locate(PyObject *module, PyObject *arguments) {
  PyObject *given[2];
  (void)module;
  return PyArg_ParseTuple(arguments, "OO", given, given + 1) ? of_both(given, located, 0) : NULL;
}

static PyObject *moments(PyObject *module, PyObject *given) {
  Py_buffer of;
  struct cells cells;
  struct clip_room room = {0};
  (void)module;
  if (!look(given, &of, &cells, 0)) return NULL;
  PyObject *made = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(cells.count * 4 * sizeof(double)));
  double *to = made ? (double *)PyByteArray_AsString(made) : NULL;
  int failed = 0;
  for (size_t i = 0; made && !failed && i < cells.count; i++) failed = clip_whole(&room, &cells, i, to + 4 * i, to + 4 * i + 1);
  clip_done(&room);
  PyBuffer_Release(&of);
  if (!failed) return made;
  Py_DECREF(made);
  return PyErr_NoMemory();
}

static PyMethodDef functions[] = {{"overlaps", overlaps, METH_VARARGS, NULL},
                                  {"locate", locate, METH_VARARGS, NULL},
                                  {"moments", moments, METH_O, NULL},
                                  {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "geometry", NULL, 0, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_geometry(void) { return PyModuleDef_Init(&module); }
