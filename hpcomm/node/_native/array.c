/* array.c: where an array lies, how many elements of which type it has. Contiguous ones in this process's memory only;
   for all else array_look says 0, and Python takes the general way.

   Arrays of numpy: the fields that its binary interface fixes (PyArrayObject_fields) are read, if trials show that they
   lie there. Others, and whatever else has the buffer protocol: its format says the type. Tensors of torch have none; their
   structure comes from DLPack's exchange table (`__dlpack_c_exchange_api__`, torch 2.10 and later) by one call of C,
   else from Python attributes. The structures below are DLPack 1's; a test compares them with torch's own header. */
#include "array.h"

#include "node.h"

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

static PyObject *ndarray_type, *numpy_empty;
enum { DTYPE, IS_CPU, IN_ORDER, DATA_PTR, SHAPE, REQUIRES_GRAD, WORDS };
static PyObject *words[WORDS]; /* interned: to make a str takes as long as an empty array */
static int has_fields;                 /* trials have found them */
static PyObject *numpy_dtypes[DTYPES]; /* of the element types: numpy has one object for each */

struct ndarray { /* the buffer protocol takes five times as long: numpy builds a description of each array */
  PyObject_HEAD char *data;
  int axes;
  Py_ssize_t *shape, *steps;
  PyObject *base, *dtype;
  int flags;
};
enum { IS_CONTIGUOUS = 1, IS_WRITABLE = 0x400 };

static PyObject *tensor_type, *new_empty, *empty_like; /* the last takes half as long */
static const dl_exchange *exchange; /* NULL: by attributes */
static PyObject *torch_dtypes;      /* {torch.float32: F32, ...} */
static PyObject *is_neg, *is_conj;  /* Tensor's methods */
static PyObject *is_grad_enabled;   /* torch's function: of this thread */

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

static int type_of_format(const char *f) {
  if (!f) return U8;
  if (*f == '@' || *f == '=') f++;
  if (f[0] == 'Z') return f[1] == 'f' && !f[2] ? C64 : f[1] == 'd' && !f[2] ? C128 : 0;
  if (!f[0] || f[1]) return 0;
  switch (f[0]) {
    case '?': return BOOL;
    case 'b': return I8;
    case 'h': return I16;
    case 'i': return I32;
    case 'l': return sizeof(long) == 8 ? I64 : I32;
    case 'q': return I64;
    case 'B': return U8;
    case 'H': return U16;
    case 'I': return U32;
    case 'L': return sizeof(long) == 8 ? U64 : U32;
    case 'Q': return U64;
    case 'e': return F16;
    case 'f': return F32;
    case 'd': return F64;
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
  PyObject *needs = PyObject_GetAttr(x, words[REQUIRES_GRAD]), *asks = NULL;
  if (needs != Py_False) asks = PyObject_CallNoArgs(is_grad_enabled);
  const int yes = needs != Py_False && asks != Py_False; /* or an exception */
  Py_XDECREF(needs);
  Py_XDECREF(asks);
  return yes;
}

/* Take over the axes; 1: their elements lie in order (steps NULL: they do). */
static int take_shape(struct array *a, int axes, const int64_t *shape, const int64_t *steps) {
  if (axes > ARRAY_AXES) return 0;
  a->axes = axes;
  a->count = 1;
  for (int i = 0; i < axes; i++) a->count *= (size_t)(a->shape[i] = shape[i]);
  for (int64_t i = axes, step = 1; steps && a->count && i-- > 0; step *= shape[i])
    if (shape[i] != 1 && steps[i] != step) return 0;
  return 1;
}

static int look_dlpack(PyObject *x, struct array *a) {
  dl_tensor t;
  if (exchange->look(x, &t)) {
    PyErr_Clear();
    return 0;
  }
  a->at = (char *)t.data + t.byte_offset;
  return t.device.type == DL_CPU && (a->dtype = type_of_dl(t.dtype)) && take_shape(a, t.ndim, t.shape, t.strides);
}

static int look_attributes(PyObject *x, struct array *a) {
  size_t answers[2];
  int64_t axes[ARRAY_AXES];
  PyObject *is_cpu = PyObject_GetAttr(x, words[IS_CPU]), *dtype = is_cpu ? PyObject_GetAttr(x, words[DTYPE]) : NULL;
  PyObject *code = dtype ? PyDict_GetItemWithError(torch_dtypes, dtype) : NULL;
  int takes = is_cpu && code && PyObject_IsTrue(is_cpu);
  a->dtype = takes ? (int)PyLong_AsLong(code) : 0;
  for (int i = 0; takes && i < 2; i++) {
    PyObject *answer = PyObject_CallMethodObjArgs(x, words[i ? DATA_PTR : IN_ORDER], NULL);
    answers[i] = answer ? PyLong_AsSize_t(answer) : 0;
    takes = answer && !PyErr_Occurred();
    Py_XDECREF(answer);
  }
  PyObject *shape = takes ? PyObject_GetAttr(x, words[SHAPE]) : NULL;
  Py_ssize_t length = shape ? PyTuple_Size(shape) : -1;
  takes &= length >= 0 && length <= ARRAY_AXES;
  for (Py_ssize_t i = 0; takes && i < length; i++) axes[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
  Py_XDECREF(shape);
  Py_XDECREF(is_cpu);
  Py_XDECREF(dtype);
  PyErr_Clear();
  if (!takes || !answers[0]) return 0;
  a->at = (char *)answers[1];
  return take_shape(a, (int)length, axes, NULL);
}

static int look_tensor(PyObject *x, struct array *a) {
  a->kind = ARRAY_TORCH;
  int yes = exchange ? look_dlpack(x, a) : look_attributes(x, a);
  if (yes != 1) return yes;
  const int is_complex = a->dtype > F64;
  if (a->dtype >= F16 && (needs_gradient(x) || is_pending(is_neg, x) || (is_complex && is_pending(is_conj, x)))) yes = 0;
  return PyErr_Occurred() ? -1 : yes;
}

static int look_buffer(PyObject *x, int writable, struct array *a) {
  a->kind = (PyObject *)Py_TYPE(x) == ndarray_type ? ARRAY_NUMPY : ARRAY_OTHER;
  if (PyObject_GetBuffer(x, &a->view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0))) {
    PyErr_Clear();
    a->view.obj = NULL;
    return 0;
  }
  a->dtype = type_of_format(a->view.format);
  a->at = a->view.buf;
  return dtype_bytes(a->dtype) == (size_t)a->view.itemsize &&
         take_shape(a, a->view.ndim, (const int64_t *)a->view.shape, NULL);
}

/* 1, 0, or -1: the buffer protocol may know more. */
static int look_fields(const struct ndarray *x, int writable, struct array *a) {
  int dtype = DTYPES;
  while (--dtype && numpy_dtypes[dtype] != x->dtype) continue;
  if (!dtype || x->flags < 0) return -1; /* another type; or one that warns before it is written to */
  if (!(x->flags & IS_CONTIGUOUS) || (writable && !(x->flags & IS_WRITABLE))) return 0;
  a->kind = ARRAY_NUMPY;
  a->dtype = dtype;
  a->at = x->data;
  return take_shape(a, x->axes, (const int64_t *)x->shape, NULL);
}

static int look_numpy(PyObject *x, int writable, struct array *a) {
  int yes = has_fields ? look_fields((const struct ndarray *)x, writable, a) : -1;
  return yes < 0 ? look_buffer(x, writable, a) : yes;
}

/* As C wants it: a complex number like its parts. Nothing is read or written of an empty array, wherever it lies. */
static int is_aligned(const struct array *a, int dtype) {
  return !a->nbytes || !((uintptr_t)a->at & ((dtype_bytes(dtype) >> (dtype >= C64)) - 1));
}

int array_look(PyObject *x, int writable, struct array *a) {
  a->view.obj = NULL;
  PyObject *type = (PyObject *)Py_TYPE(x);
  int yes = type == ndarray_type  ? look_numpy(x, writable, a)
            : type == tensor_type ? look_tensor(x, a)
                                  : look_buffer(x, writable, a);
  if (yes == 1) {
    a->nbytes = a->count * dtype_bytes(a->dtype);
    yes = a->dtype && is_aligned(a, a->dtype) && (a->at || !a->count); /* a freed storage is nowhere */
  }
  if (yes != 1) array_done(a);
  return yes;
}

void array_done(struct array *a) {
  if (a->view.obj) PyBuffer_Release(&a->view);
  a->view.obj = NULL;
}

int array_as(struct array *a, int dtype) {
  size_t size = dtype_bytes(dtype);
  if (!size || a->nbytes % size || !is_aligned(a, dtype)) return 0;
  a->dtype = dtype;
  a->count = a->nbytes / size;
  return 1;
}

static const char *const names[DTYPES] = {
    [BOOL] = "bool",    [I8] = "int8",       [I16] = "int16",   [I32] = "int32",     [I64] = "int64",
    [U8] = "uint8",     [U16] = "uint16",    [U32] = "uint32",  [U64] = "uint64",    [F16] = "float16",
    [BF16] = "bfloat16", [F32] = "float32",   [F64] = "float64", [C64] = "complex64", [C128] = "complex128"};

static int know_words(void) {
  static const char *const spelt[WORDS] = {"dtype", "is_cpu", "is_contiguous", "data_ptr", "shape", "requires_grad"};
  for (int i = 0; i < WORDS; i++)
    if (!words[i] && !(words[i] = PyUnicode_InternFromString(spelt[i]))) return -1;
  return 0;
}

static int know_dtypes(PyObject *torch) {
  if (!torch_dtypes && !(torch_dtypes = PyDict_New())) return -1;
  for (int i = 1; i < DTYPES; i++) {
    if (!names[i]) continue;
    PyObject *dtype = PyObject_GetAttrString(torch, names[i]), *code = PyLong_FromLong(i);
    int bad = dtype && code ? PyDict_SetItem(torch_dtypes, dtype, code) : 0;
    if (!dtype) PyErr_Clear(); /* an older torch */
    Py_XDECREF(dtype);
    Py_XDECREF(code);
    if (bad) return -1;
  }
  return 0;
}

/* Whether what is read in an array's fields is what the buffer protocol says. */
static int agrees(PyObject *x, int writable) {
  struct array a = {.count = 0}, b = {.count = 0};
  const int one = look_fields((const struct ndarray *)x, writable, &a), other = look_buffer(x, writable, &b);
  const int same = a.at == b.at && a.dtype == b.dtype && a.count == b.count && a.axes == b.axes &&
                   !memcmp(a.shape, b.shape, (size_t)a.axes * sizeof *a.shape);
  array_done(&b);
  return one == other && (one != 1 || same);
}

static int agrees_in_all_forms(PyObject *x) {
  PyObject *turned = PyObject_GetAttrString(x, "T");
  int yes = turned && agrees(x, 1) && agrees(turned, 1);
  PyObject *done = PyObject_CallMethod(x, "setflags", "i", 0);
  yes = yes && done && agrees(x, 1) && agrees(x, 0);
  Py_XDECREF(turned);
  Py_XDECREF(done);
  return yes;
}

int array_know_numpy(PyObject *numpy) {
  ndarray_type = PyObject_GetAttrString(numpy, "ndarray"); /* kept for ever, as the module is */
  numpy_empty = PyObject_GetAttrString(numpy, "empty");
  if (!ndarray_type || !numpy_empty || know_words()) return -1;
  int yes = 1;
  for (int i = 1; i < DTYPES; i++) {
    if (!names[i] || i == BF16) continue; /* numpy has none */
    PyObject *tried = PyObject_CallFunction(numpy_empty, "((ii)s)", 2, 3, names[i]);
    if (!tried) return -1;
    numpy_dtypes[i] = PyObject_GetAttrString(tried, "dtype");
    yes &= agrees_in_all_forms(tried);
    Py_DECREF(tried);
  }
  PyErr_Clear();
  has_fields = yes;
  return 0;
}

static PyObject *empty_array(PyObject *x, const struct array *a, int axes, const int64_t *shape) {
  if (a->kind == ARRAY_TORCH && axes == a->axes && !memcmp(shape, a->shape, (size_t)axes * sizeof *shape))
    return PyObject_CallFunctionObjArgs(empty_like, x, NULL);
  PyObject *made = NULL, *dtype = NULL, *sizes = PyTuple_New(axes);
  for (int i = 0; sizes && i < axes; i++) PyTuple_SetItem(sizes, i, PyLong_FromLongLong(shape[i]));
  if (sizes && a->kind == ARRAY_TORCH)
    made = PyObject_CallFunctionObjArgs(new_empty, x, sizes, NULL);
  else if (sizes && (dtype = PyObject_GetAttr(x, words[DTYPE])))
    made = PyObject_CallFunctionObjArgs(numpy_empty, sizes, dtype, NULL);
  Py_XDECREF(sizes);
  Py_XDECREF(dtype);
  return made;
}

PyObject *array_like(PyObject *x, const struct array *a, int axes, const int64_t *shape, char **at) {
  PyObject *made = empty_array(x, a, axes, shape);
  struct array its;
  if (made && array_look(made, 1, &its) == 1) {
    *at = its.at;
    array_done(&its);
  } else
    Py_CLEAR(made);
  if (!made) PyErr_Clear();
  return made;
}

int array_know_torch(PyObject *torch) {
  PyObject *type = PyObject_GetAttrString(torch, "Tensor");
  if (!type || know_words() || know_dtypes(torch) || !(is_neg = PyObject_GetAttrString(type, "is_neg")) ||
      !(is_conj = PyObject_GetAttrString(type, "is_conj")) ||
      !(is_grad_enabled = PyObject_GetAttrString(torch, "is_grad_enabled")) ||
      !(new_empty = PyObject_GetAttrString(type, "new_empty")) ||
      !(empty_like = PyObject_GetAttrString(torch, "empty_like"))) {
    Py_XDECREF(type);
    return -1;
  }
  PyObject *capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
  const dl_exchange *table = capsule ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : NULL;
  PyErr_Clear();
  Py_XDECREF(capsule);
  exchange = table && table->major == 1 && table->look ? table : NULL;
  tensor_type = type; /* kept for ever, as the module is */
  return exchange != NULL;
}
