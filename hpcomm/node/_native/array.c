/* array.c: where an array lies, how many elements of which type it has. Those in this process's memory only, of which no
   two elements share a place; for all else array_look says 0, and Python takes the general way.

   Arrays of numpy: the fields that its binary interface fixes are read, PyArrayObject_fields and the first ones of
   PyArray_Descr, which are the same in numpy 1 and 2. The buffer protocol takes five times as long: numpy builds a
   description of each array. Tensors of torch: DLPack's exchange table, `__dlpack_c_exchange_api__`, by one call of C. Torch
   has it from 2.10 on; tensors of an older one take the general way, which has numpy's arrays on their memory.
   Tests compare the structures below with the headers of numpy and torch. */
#include "array.h"

#include "node.h"

#define RESULT_LARGE (4u << 20) /* bytes, as in core/limits.py */

typedef struct {
  int32_t type, id;
} dl_device;
typedef struct {
  uint8_t code, bits;
  uint16_t lanes;
} dl_type;
typedef struct {
  void *data;
  dl_device device;
  int32_t ndim;
  dl_type dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} dl_tensor;
typedef struct {
  uint32_t major, minor;
  void *previous;
  void *allocate, *from_object, *to_object;
  int (*look)(void *object, dl_tensor *); /* borrows: no reference is taken */
  void *stream;
} dl_exchange;
enum { DL_CPU = 1 };

_Static_assert(sizeof(Py_ssize_t) == sizeof(int64_t), "shapes of buffers are like DLPack's");

struct descr {
  PyObject_HEAD PyTypeObject *type;
  char kind, letter, order, flags;
  int number;
};
struct ndarray {
  PyObject_HEAD char *data;
  int axes;
  Py_ssize_t *shape, *steps;
  PyObject *base;
  struct descr *dtype;
  int flags;
};
enum { IS_CONTIGUOUS = 1, IS_WRITABLE = 0x400 }; /* and the sign: it warns before it is written to */

static PyObject *ndarray_type, *numpy_empty;           /* kept for ever, as the module is */
static int bfloat16 = -1;                              /* numpy's number of ml_dtypes' type */
static PyObject *tensor_type, *new_empty, *empty_like; /* the last takes half as long */
static const dl_exchange *exchange;
static PyObject *is_neg, *is_conj; /* Tensor's methods */
static PyObject *is_grad_enabled;  /* torch's function: of this thread */
static PyObject *requires_grad;    /* interned: to make a str takes as long as an empty array */

/* By numpy's numbers of types; 0: another type, or bytes in another order. */
static int type_of_descr(const struct descr *d) {
  static const signed char by_number[] = {BOOL, I8, U8, I16, U16, I32, U32, sizeof(long) == 8 ? I64 : I32,
                                          sizeof(long) == 8 ? U64 : U32, I64, U64, F32, F64, 0, C64, C128, [23] = F16};
  const int known = d->number >= 0 && d->number < (int)sizeof by_number;
  const char other = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? '>' : '<';
  return d->order == other ? 0 : d->number == bfloat16 ? BF16 : known ? by_number[d->number] : 0;
}

static int type_of_dl(dl_type t) {
  static const signed char by_code[7][4] = {/* of 1, 2, 4 and 8 bytes */
                                            {I8, I16, I32, I64}, {U8, U16, U32, U64}, {0, F16, F32, F64}, {0},
                                            {0, BF16, 0, 0},     {0, 0, 0, C64},      {BOOL, 0, 0, 0}};
  if (t.lanes != 1 || t.code > 6) return 0;
  switch (t.bits) {
    case 8: return by_code[t.code][0];
    case 16: return by_code[t.code][1];
    case 32: return by_code[t.code][2];
    case 64: return by_code[t.code][3];
    case 128: return t.code == 5 ? C128 : 0;
    default: return 0;
  }
}

/* Complex tensors can have a conjugate still to be applied, and these and real ones a sign. */
static int is_pending(PyObject *question, PyObject *x) {
  PyObject *answer = PyObject_CallFunctionObjArgs(question, x, NULL);
  Py_XDECREF(answer); /* True, False, or an exception */
  return answer != Py_False;
}

/* Autograd would have to know of what is done to it: Python refuses that. */
static int needs_gradient(PyObject *x) {
  PyObject *needs = PyObject_GetAttr(x, requires_grad), *asks = NULL;
  if (needs != Py_False) asks = PyObject_CallNoArgs(is_grad_enabled);
  const int yes = needs != Py_False && asks != Py_False; /* or an exception */
  Py_XDECREF(needs);
  Py_XDECREF(asks);
  return yes;
}

/* Take over the axes, and how far it is from element to element along each, in units of bytes (steps NULL: they lie in order). */
static int take_shape(struct array *a, int axes, const int64_t *shape, const int64_t *steps, size_t unit) {
  int64_t bytes[ARRAY_AXES];
  if (axes > ARRAY_AXES) return 0;
  a->axes = axes;
  a->count = 1;
  a->lies.axes = 0;
  for (int i = 0; i < axes; i++) a->count *= (size_t)(a->shape[i] = shape[i]);
  if (!steps || !a->count) return 1;
  for (int i = 0; i < axes; i++) bytes[i] = steps[i] * (int64_t)unit;
  return layout_of(&a->lies, dtype_bytes(a->dtype), axes, shape, bytes);
}

static int look_tensor(PyObject *x, struct array *a) {
  dl_tensor t;
  if (exchange->look(x, &t)) {
    PyErr_Clear();
    return 0;
  }
  a->kind = ARRAY_TORCH;
  a->at = (char *)t.data + t.byte_offset;
  a->dtype = type_of_dl(t.dtype);
  if (t.device.type != DL_CPU || !a->dtype || !take_shape(a, t.ndim, t.shape, t.strides, dtype_bytes(a->dtype)))
    return 0;
  const int is_complex = a->dtype > F64;
  if (a->dtype >= F16 && (needs_gradient(x) || is_pending(is_neg, x) || (is_complex && is_pending(is_conj, x))))
    return PyErr_Occurred() ? -1 : 0;
  return 1;
}

static int look_numpy(PyObject *object, int writable, struct array *a) {
  const struct ndarray *x = (const struct ndarray *)object;
  Py_buffer view;
  if (writable && x->flags < 0) { /* let numpy warn */
    if (PyObject_GetBuffer(object, &view, PyBUF_STRIDES | PyBUF_WRITABLE)) return PyErr_Clear(), 0;
    PyBuffer_Release(&view);
  }
  if (writable && !(x->flags & IS_WRITABLE)) return 0;
  a->kind = ARRAY_NUMPY;
  a->dtype = type_of_descr(x->dtype);
  a->at = x->data;
  const int64_t *steps = x->flags & IS_CONTIGUOUS ? NULL : (const int64_t *)x->steps;
  return take_shape(a, x->axes, (const int64_t *)x->shape, steps, 1);
}

/* As C wants it: a complex number like its parts. Nothing is read or written of an empty array, wherever it lies. */
static int is_aligned(const struct array *a, int dtype) {
  return !a->nbytes || !((uintptr_t)a->at & ((dtype_bytes(dtype) >> (dtype >= C64)) - 1));
}

int array_look_any(PyObject *x, int writable, struct array *a) {
  PyObject *type = (PyObject *)Py_TYPE(x);
  int yes = type == ndarray_type ? look_numpy(x, writable, a) : type == tensor_type ? look_tensor(x, a) : 0;
  if (yes != 1) return yes;
  a->nbytes = a->count * dtype_bytes(a->dtype);
  return a->dtype && is_aligned(a, a->dtype) && (a->at || !a->count); /* a freed storage is nowhere */
}

int array_look(PyObject *x, int writable, struct array *a) {
  const int takes = array_look_any(x, writable, a);
  return takes == 1 ? !a->lies.axes : takes;
}

int array_as(struct array *a, int dtype) {
  size_t size = dtype_bytes(dtype);
  if (!size || a->nbytes % size || !is_aligned(a, dtype) || (a->lies.axes && (size_t)a->lies.size != size)) return 0;
  a->dtype = dtype;
  a->count = a->nbytes / size;
  return 1;
}

/* Whether the fields of an array lie where we read them: as its buffer says. */
static int has_fields(PyObject *tried) {
  const struct ndarray *x = (const struct ndarray *)tried;
  Py_buffer view;
  if (PyObject_GetBuffer(tried, &view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)) return PyErr_Clear(), 0;
  const int yes = x->data == view.buf && x->axes == 2 && x->shape[0] == 2 && x->shape[1] == 3 && x->steps[0] == 12 &&
                  (x->flags & IS_CONTIGUOUS) && (x->flags & IS_WRITABLE) && type_of_descr(x->dtype) == F32;
  PyBuffer_Release(&view);
  return yes;
}

int array_know_numpy(PyObject *numpy) {
  PyObject *type = PyObject_GetAttrString(numpy, "ndarray");
  numpy_empty = PyObject_GetAttrString(numpy, "empty");
  PyObject *tried = numpy_empty ? PyObject_CallFunction(numpy_empty, "((ii)s)", 2, 3, "f4") : NULL;
  if (!type || !tried) return -1;
  if (has_fields(tried)) ndarray_type = type;
  Py_DECREF(tried);
  return 0;
}

int array_know_ml_dtypes(PyObject *ml_dtypes) {
  PyObject *type = PyObject_GetAttrString(ml_dtypes, "bfloat16");
  PyObject *tried = type && numpy_empty ? PyObject_CallFunction(numpy_empty, "iO", 0, type) : NULL;
  Py_XDECREF(type);
  if (!tried) return -1;
  if (ndarray_type) bfloat16 = ((struct ndarray *)tried)->dtype->number;
  Py_DECREF(tried);
  return 0;
}

/* In memory that was used before, where that can be. */
static PyObject *large_array(PyObject *x, PyObject *sizes) {
  static PyObject *like;
  PyObject *module = like ? NULL : PyImport_ImportModule("hpcomm.core.result_memory");
  if (module) like = PyObject_GetAttrString(module, "like");
  Py_XDECREF(module);
  return like ? PyObject_CallFunctionObjArgs(like, x, sizes, NULL) : NULL;
}

static PyObject *empty_array(PyObject *x, const struct array *a, int axes, const int64_t *shape) {
  size_t nbytes = dtype_bytes(a->dtype);
  for (int i = 0; i < axes; i++) nbytes *= (size_t)shape[i];
  const int is_large = nbytes >= RESULT_LARGE;
  if (!is_large && a->kind == ARRAY_TORCH && !a->lies.axes && axes == a->axes && !memcmp(shape, a->shape, (size_t)axes * sizeof *shape))
    return PyObject_CallFunctionObjArgs(empty_like, x, NULL);
  PyObject *made = NULL, *sizes = PyTuple_New(axes);
  for (int i = 0; sizes && i < axes; i++) PyTuple_SetItem(sizes, i, PyLong_FromLongLong(shape[i]));
  if (sizes && is_large)
    made = large_array(x, sizes);
  else if (sizes && a->kind == ARRAY_TORCH)
    made = PyObject_CallFunctionObjArgs(new_empty, x, sizes, NULL);
  else if (sizes)
    made = PyObject_CallFunctionObjArgs(numpy_empty, sizes, (PyObject *)((struct ndarray *)x)->dtype, NULL);
  Py_XDECREF(sizes);
  return made;
}

PyObject *array_like(PyObject *x, const struct array *a, int axes, const int64_t *shape, char **at) {
  PyObject *made = empty_array(x, a, axes, shape);
  struct array its;
  if (made && array_look(made, 1, &its) == 1) return *at = its.at, made;
  Py_XDECREF(made);
  PyErr_Clear();
  return NULL;
}

int array_know_torch(PyObject *torch) {
  PyObject *type = PyObject_GetAttrString(torch, "Tensor"), *capsule;
  if (!type || !(capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__"))) return PyErr_Clear(), 0;
  const dl_exchange *table = PyCapsule_GetPointer(capsule, "dlpack_exchange_api"); /* the type keeps it */
  Py_DECREF(capsule);
  if (!table || table->major != 1 || !table->look) return PyErr_Clear(), 0;
  if (!(is_neg = PyObject_GetAttrString(type, "is_neg")) || !(is_conj = PyObject_GetAttrString(type, "is_conj")) ||
      !(is_grad_enabled = PyObject_GetAttrString(torch, "is_grad_enabled")) ||
      !(new_empty = PyObject_GetAttrString(type, "new_empty")) ||
      !(empty_like = PyObject_GetAttrString(torch, "empty_like")) ||
      !(requires_grad = PyUnicode_InternFromString("requires_grad")))
    return -1;
  exchange = table;
  tensor_type = type;
  return 1;
}
