/* A small stand-in for libcuda: the functions that hpcomm/device/cuda.py calls, with their C signatures.
 *
 * Device memory has addresses without access rights, so the host faults on them; its bytes are in a second
 * mapping of the same memory file, which other processes open by handle. Work is done at once, in order.
 * With WITH_CUDA_H the compiler holds the signatures against NVIDIA's own header. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>
#include <pthread.h>
#include <sys/mman.h>

#ifdef WITH_CUDA_H
#include <cuda.h>
#else
typedef int CUresult, CUdevice, CUpointer_attribute, CUstreamCaptureStatus;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct { char bytes[16]; } CUuuid;
typedef struct { char reserved[64]; } CUipcMemHandle, CUipcEventHandle;
#endif

enum { OK = 0, INVALID = 1, UNINITIALIZED = 3, NO_CONTEXT = 201, BAD_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, UNSUPPORTED = 801 };
typedef struct { unsigned long long low, size; char *bytes; int file, kind; unsigned long long serial; } Memory; /* 1 device, 2 pinned, 3 opened */
typedef struct { int file; long process; unsigned long long size; } Card;
struct CUctx_st { int device; };
struct CUstream_st { int flags; };
struct CUevent_st { int flags, file; volatile int *state; }; /* 0 never recorded, 1 recorded */

static Memory known[4096];
static int count, ready, capturing;
static struct CUctx_st context;
static __thread CUcontext stack[16];
static __thread int depth;

#define NEED_CONTEXT if (!ready) return UNINITIALIZED; if (!depth || !stack[depth - 1]) return NO_CONTEXT

static Memory *find(unsigned long long at, size_t n) {
    for (int i = 0; i < count; i++)
        if (known[i].kind && known[i].low <= at && at + (n ? n : 1) <= known[i].low + known[i].size) return &known[i];
    return NULL;
}

/* Where the bytes of device memory are, for libnccl.c and the stand-in of CuPy. */
char *fake_cuda_bytes(unsigned long long at, size_t n) {
    Memory *memory = find(at, n);
    return memory && memory->kind != 2 ? memory->bytes + (at - memory->low) : NULL;
}

static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER; /* threads of one process call at once */

static void keep(Memory memory) {
    static unsigned long long serial;
    pthread_mutex_lock(&table);
    int i = 0;
    memory.serial = ++serial; /* addresses are given out again, serials never, as in CUDA */
    while (i < count && known[i].kind) i++;
    if (i == count) count++;
    known[i] = memory;
    pthread_mutex_unlock(&table);
}

static CUdeviceptr map(int file, size_t size, int kind) {
    char *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    char *shown = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    keep((Memory){(unsigned long long)shown, size, bytes, file, kind, 0});
    return (CUdeviceptr)shown;
}

static void forget(Memory *memory) { /* last the addresses, so that nobody is given them while they are known */
    Memory gone = *memory;
    memory->kind = 0;
    munmap(gone.bytes, gone.size);
    close(gone.file);
    munmap((void *)gone.low, gone.size);
}

CUresult cuInit(unsigned int flags) { ready = flags == 0; return flags ? INVALID : OK; }
CUresult cuDriverGetVersion(int *version) {
    const char *said = getenv("FAKE_CUDA_VERSION");
    *version = said ? atoi(said) : 12080;
    return OK;
}
CUresult cuGetErrorName(CUresult error, const char **text) {
    *text = error == BAD_HANDLE ? "CUDA_ERROR_INVALID_HANDLE" : error == INVALID ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR";
    return OK;
}
CUresult cuGetErrorString(CUresult error, const char **text) { *text = "said by the stand-in"; return error ? OK : OK; }
CUresult cuDeviceGetCount(int *n) { *n = 2; return OK; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { *device = 40 + ordinal; return ordinal < 2 ? OK : INVALID; }
CUresult cuDeviceGetName(char *name, int length, CUdevice device) { snprintf(name, length, "stand-in %d", device - 40); return OK; }
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) { memset(uuid->bytes, device, 16); return OK; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *made, CUdevice device) { context.device = device; *made = &context; return OK; }
CUresult cuCtxGetCurrent(CUcontext *current) { *current = depth ? stack[depth - 1] : NULL; return ready ? OK : UNINITIALIZED; }
CUresult cuCtxPushCurrent_v2(CUcontext other) { stack[depth++] = other; return OK; }
CUresult cuCtxPopCurrent_v2(CUcontext *other) { *other = stack[--depth]; return OK; }

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute what, CUdeviceptr at) {
    NEED_CONTEXT; /* some driver versions answer without one, others do not (triton #5276) */
    Memory *memory = find(at, 0);
    if (!memory) return INVALID;
    if (what == 2) *(unsigned int *)data = memory->kind == 2 ? 1 : 2;
    else if (what == 9) *(int *)data = 1;
    else if (what == 7) *(unsigned long long *)data = memory->serial;
    else if (what == 10) *(char *)data = memory->kind == 1 && memory->size != (6 << 20); /* 6 MiB: as from a pool */
    else return INVALID;
    return OK;
}
CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t size) {
    NEED_CONTEXT;
    int file = memfd_create("device", 0);
    if (ftruncate(file, size)) return INVALID;
    *at = map(file, size, 1);
    return OK;
}
CUresult cuMemFree_v2(CUdeviceptr at) {
    NEED_CONTEXT;
    Memory *memory = find(at, 0);
    if (!memory || memory->low != at) return INVALID;
    forget(memory);
    return OK;
}
CUresult cuMemGetAddressRange_v2(CUdeviceptr *low, size_t *size, CUdeviceptr at) {
    NEED_CONTEXT;
    Memory *memory = find(at, 0);
    if (!memory) return INVALID;
    *low = memory->low; *size = memory->size;
    return OK;
}
CUresult cuMemHostAlloc(void **at, size_t size, unsigned int flags) {
    NEED_CONTEXT;
    if (flags != 1) return INVALID;
    *at = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    keep((Memory){(unsigned long long)*at, size, *at, -1, 2, 0});
    return OK;
}
CUresult cuMemFreeHost(void *at) {
    NEED_CONTEXT;
    Memory *memory = find((CUdeviceptr)at, 0);
    if (!memory || memory->kind != 2) return INVALID;
    memory->kind = 0;
    free(at);
    return OK;
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream stream) {
    NEED_CONTEXT;
    if (!stream) return INVALID; /* 0 stands for another stream where a program is built per thread: 1 is meant */
    Memory *a = find(to, n), *b = find(from, n);
    if (!a || !b) return INVALID;
    memmove(a->bytes + (to - a->low), b->bytes + (from - b->low), n);
    return OK;
}
CUresult cuStreamCreate(CUstream *made, unsigned int flags) {
    NEED_CONTEXT;
    if (flags != 1) return INVALID;
    *made = calloc(1, sizeof **made);
    return OK;
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) { NEED_CONTEXT; return flags || !event ? INVALID : OK; }
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) { NEED_CONTEXT; *status = capturing; return OK; }
CUresult cuEventCreate(CUevent *made, unsigned int flags) {
    NEED_CONTEXT;
    if (!(flags & 2)) return INVALID; /* timing is never wanted, and forbidden between processes */
    CUevent event = calloc(1, sizeof *event);
    event->flags = flags;
    event->file = memfd_create("event", 0);
    if (ftruncate(event->file, 4096)) return INVALID;
    event->state = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, event->file, 0);
    *made = event;
    return OK;
}
CUresult cuEventDestroy_v2(CUevent event) { NEED_CONTEXT; free(event); return OK; }
CUresult cuEventRecord(CUevent event, CUstream stream) { NEED_CONTEXT; *event->state = 1; return OK; }
CUresult cuEventSynchronize(CUevent event) { NEED_CONTEXT; return OK; }
CUresult cuEventQuery(CUevent event) { NEED_CONTEXT; return getenv("FAKE_CUDA_BUSY") ? NOT_READY : *event->state ? OK : BAD_HANDLE; }

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr at) {
    NEED_CONTEXT;
    Memory *memory = find(at, 0);
    if (!memory || memory->kind != 1 || memory->low != at) return INVALID; /* it names allocations */
    if (memory->size % (2 << 20)) return UNSUPPORTED; /* CUDA would share what else lies in the same 2 MiB */
    Card card = {memory->file, getpid(), memory->size};
    memcpy(handle, &card, sizeof card);
    return OK;
}
static int opened(const Card *card) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", card->process, card->file);
    return open(path, O_RDWR);
}
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *at, CUipcMemHandle handle, unsigned int flags) {
    NEED_CONTEXT;
    Card card;
    memcpy(&card, &handle, sizeof card);
    int file = flags == 1 && card.process != getpid() ? opened(&card) : -1;
    if (file < 0) return BAD_HANDLE;
    *at = map(file, card.size, 3);
    return OK;
}
CUresult cuIpcCloseMemHandle(CUdeviceptr at) { NEED_CONTEXT; Memory *memory = find(at, 0); if (!memory || memory->kind != 3) return INVALID; forget(memory); return OK; }
CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event) {
    NEED_CONTEXT;
    if (!(event->flags & 4)) return BAD_HANDLE;
    Card card = {event->file, getpid(), 0};
    memcpy(handle, &card, sizeof card);
    return OK;
}
CUresult cuIpcOpenEventHandle(CUevent *made, CUipcEventHandle handle) {
    NEED_CONTEXT;
    Card card;
    memcpy(&card, &handle, sizeof card);
    int file = opened(&card);
    if (file < 0) return BAD_HANDLE;
    CUevent event = calloc(1, sizeof *event);
    event->state = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    *made = event;
    return OK;
}

/* What cuda-bindings ask for every function: the newest version of it. Not called by cuda.py itself. */
#ifndef WITH_CUDA_H
extern CUresult cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, int *how) {
    char newest[80];
    Dl_info self;
    if (!dladdr(&known, &self)) return UNINITIALIZED;
    void *library = dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    snprintf(newest, sizeof newest, "%s_v2", name);
    *function = dlsym(library, newest);
    if (!*function) *function = dlsym(library, name);
    if (how) *how = !*function;
    return *function ? OK : NOT_FOUND;
}
#endif
