/* module.c: `geometry`, the hot part of mappings as Python sees it (geometry.pyi has the types). */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "clip.h"

/* A contiguous array of `axes` axes of numbers of this letter, 8 bytes each. */
static int look(PyObject *x, Py_buffer *to, const char *letters, int axes, int writable) {
  if (PyObject_GetBuffer(x, to, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0))) return 0;
  const char *format = to->format ? to->format : "B";
  for (const char *each = letters; *each; each++)
    if (format[0] == *each && !format[1] && to->itemsize == 8 && to->ndim == axes) return 1;
  PyErr_Format(PyExc_TypeError, "an array of %d axes of type '%c' is needed, not %d axes of '%s'", axes, letters[0],
               to->ndim, format);
  PyBuffer_Release(to);
  return 0;
}

enum { OURS, OTHERS, A, B, AREA, MOMENT, ARRAYS };

/* What is wrong with the shapes, or NULL. Others are polygons, or (of 2 axes) bounds of rectangles on the sphere. */
static const char *misfit(const Py_buffer *of) {
  const Py_ssize_t n = of[A].shape[0], wide = of[OURS].shape[2];
  const int is_bounds = of[OTHERS].ndim == 2;
  if ((wide != 2 && wide != 3) || (is_bounds ? 3 : of[OTHERS].shape[2]) != wide || of[MOMENT].shape[1] != wide)
    return "positions have 2 numbers on a plane, 3 on the sphere";
  if (is_bounds && of[OTHERS].shape[1] != 4) return "a rectangle has 4 bounds";
  if (of[OURS].shape[1] < 1 || of[OTHERS].shape[1] < 1) return "a polygon has a corner";
  if (of[B].shape[0] != n || of[AREA].shape[0] != n || of[MOMENT].shape[0] != n) return "the arrays are of several lengths";
  for (Py_ssize_t i = 0; i < n; i++) {
    const int64_t a = ((const int64_t *)of[A].buf)[i], b = ((const int64_t *)of[B].buf)[i];
    if (a < 0 || a >= of[OURS].shape[0] || b < 0 || b >= of[OTHERS].shape[0]) return "there is no polygon of such an index";
  }
  return NULL;
}

static int fill(const Py_buffer *of) {
  const struct polygons ours = {of[OURS].buf, (size_t)of[OURS].shape[0], (size_t)of[OURS].shape[1]},
                        others = {of[OTHERS].buf, (size_t)of[OTHERS].shape[0], (size_t)of[OTHERS].shape[1]};
  const int is_bounds = of[OTHERS].ndim == 2;
  const int64_t *a = of[A].buf, *b = of[B].buf;
  const size_t n = (size_t)of[A].shape[0], wide = (size_t)of[OURS].shape[2];
  double *area = of[AREA].buf, *moment = of[MOMENT].buf;
  struct clip_room room = {0};
  int is_done = 1;
  for (size_t i = 0; is_done && i < n; i++)
    is_done = !(is_bounds ? clip_within(&room, &ours, (size_t)a[i], others.at + 4 * b[i], area + i, moment + i * wide)
                          : clip_overlap(&room, (int)wide, &ours, (size_t)a[i], &others, (size_t)b[i], area + i,
                                         moment + i * wide));
  clip_done(&room);
  return is_done;
}

static PyObject *fill_arrays(PyObject *arguments, int axes_of_others) {
  const struct {
    const char *letters;
    int axes, writable;
  } wanted[ARRAYS] = {{"d", 3, 0}, {"d", axes_of_others, 0}, {"lq", 1, 0}, {"lq", 1, 0}, {"d", 1, 1}, {"d", 2, 1}};
  PyObject *given[ARRAYS];
  Py_buffer of[ARRAYS];
  if (!PyArg_ParseTuple(arguments, "OOOOOO", given, given + 1, given + 2, given + 3, given + 4, given + 5)) return NULL;
  int had = 0;
  while (had < ARRAYS && look(given[had], of + had, wanted[had].letters, wanted[had].axes, wanted[had].writable)) had++;
  const char *wrong = had < ARRAYS ? NULL : misfit(of);
  if (wrong) PyErr_SetString(PyExc_ValueError, wrong);
  if (had == ARRAYS && !wrong) {
    int is_done;
    Py_BEGIN_ALLOW_THREADS;
    is_done = fill(of);
    Py_END_ALLOW_THREADS;
    if (!is_done) PyErr_NoMemory();
  }
  while (had > 0) PyBuffer_Release(of + --had);
  if (PyErr_Occurred()) return NULL;
  return Py_NewRef(Py_None);
}

static PyObject *overlaps(PyObject *module, PyObject *arguments) { return (void)module, fill_arrays(arguments, 3); }
static PyObject *within(PyObject *module, PyObject *arguments) { return (void)module, fill_arrays(arguments, 2); }

static PyMethodDef functions[] = {
    {"overlaps", overlaps, METH_VARARGS, NULL}, {"within", within, METH_VARARGS, NULL}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "geometry", NULL, 0, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_geometry(void) { return PyModuleDef_Init(&module); }
