/* A small stand-in for libnccl: the functions that hpcomm/device/nccl.py calls, with their C signatures.
 *
 * The ranks of a group meet in a memory file and do each call at once. As the real one it tells wrong
 * arguments by its result; unlike it, also calls that do not match. Device memory is that of libcuda.c,
 * found through FAKE_LIBCUDA. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, RANKS = 8, ROOM = 1 << 18, LIMIT_S = 20 };
typedef int ncclResult_t;
typedef struct { char internal[128]; } ncclUniqueId;
typedef struct { int verb, dtype, op, root; size_t count; } Card;
typedef struct { Card cards[RANKS][RANKS + 1]; char data[RANKS][ROOM]; int arrived, turn; } Shared;
struct ncclComm { int size, rank; Shared *shared; };
typedef struct ncclComm *ncclComm_t;
typedef struct { int sends, peer, dtype; size_t nbytes; char *at; ncclComm_t comm; } Message;

static const size_t widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
static Message queued[4 * RANKS];
static int depth, messages;

static char *bytes_of(uint64_t at, size_t n) {
    static char *(*find)(unsigned long long, size_t);
    if (!find) {
        void *cuda = dlopen(getenv("FAKE_LIBCUDA"), RTLD_LAZY | RTLD_NOLOAD);
        find = cuda ? (char *(*)(unsigned long long, size_t))dlsym(cuda, "fake_cuda_bytes") : NULL;
    }
    return find ? find(at, n) : NULL;
}

static int barrier(ncclComm_t comm) {
    Shared *s = comm->shared;
    int turn = __atomic_load_n(&s->turn, __ATOMIC_SEQ_CST);
    if (__atomic_add_fetch(&s->arrived, 1, __ATOMIC_SEQ_CST) == comm->size) {
        s->arrived = 0;
        __atomic_add_fetch(&s->turn, 1, __ATOMIC_SEQ_CST);
        return OK;
    }
    time_t end = time(NULL) + LIMIT_S;
    while (__atomic_load_n(&s->turn, __ATOMIC_SEQ_CST) == turn) {
        if (time(NULL) > end) return SYSTEM_ERROR;
        usleep(50);
    }
    return OK;
}

ncclResult_t ncclGetVersion(int *version) { *version = 22703; return OK; }
const char *ncclGetErrorString(ncclResult_t result) {
    return result == INVALID_ARGUMENT ? "invalid argument" : result == INVALID_USAGE ? "invalid usage" : "unhandled system error";
}
ncclResult_t ncclGetUniqueId(ncclUniqueId *made) {
    memset(made, 0, sizeof *made);
    snprintf(made->internal, sizeof made->internal, "/dev/shm/stand-in-nccl-%d-%d", getpid(), rand());
    int file = open(made->internal, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file < 0 || ftruncate(file, sizeof(Shared))) return SYSTEM_ERROR;
    close(file);
    return OK;
}
ncclResult_t ncclCommInitRank(ncclComm_t *made, int size, ncclUniqueId unique, int rank) {
    if (size < 1 || size > RANKS || rank < 0 || rank >= size) return INVALID_ARGUMENT;
    int file = open(unique.internal, O_RDWR);
    if (file < 0) return INVALID_ARGUMENT;
    ncclComm_t comm = malloc(sizeof *comm);
    comm->size = size; comm->rank = rank;
    comm->shared = mmap(NULL, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    int result = barrier(comm);
    if (rank == 0) unlink(unique.internal);
    *made = comm;
    return result;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) { if (!comm) return INVALID_ARGUMENT; munmap(comm->shared, sizeof(Shared)); free(comm); return OK; }

#define FOLD(T) for (size_t i = 0; i < n; i++) { T a = ((T *)into)[i], b = ((T *)from)[i]; \
    ((T *)into)[i] = op == 0 ? a + b : op == 1 ? a * b : op == 2 ? (a > b ? a : b) : (a < b ? a : b); }
static int fold(char *into, const char *from, size_t n, int dtype, int op) {
    switch (dtype) {
    case 0: FOLD(int8_t) break; case 1: FOLD(uint8_t) break; case 2: FOLD(int32_t) break; case 3: FOLD(uint32_t) break;
    case 4: FOLD(int64_t) break; case 5: FOLD(uint64_t) break; case 7: FOLD(float) break; case 8: FOLD(double) break;
    default: return INVALID_ARGUMENT;
    }
    return OK;
}

/* given: elements that each rank gives; the result is all of them folded (op >= 0) or side by side */
static int together(int verb, uint64_t send, uint64_t recv, size_t given, size_t got, int dtype, int op, int root, ncclComm_t comm, void *stream) {
    if (!comm || !stream || dtype < 0 || dtype > 9 || op > 3 || root < 0 || root >= comm->size) return INVALID_ARGUMENT;
    size_t width = widths[dtype];
    char *from = bytes_of(send, given * width), *into = bytes_of(recv, got * width);
    if (!from || !into || given * width > ROOM) return INVALID_ARGUMENT;
    Shared *s = comm->shared;
    Card mine = {verb, dtype, op, root, given};
    s->cards[comm->rank][RANKS] = mine;
    memcpy(s->data[comm->rank], from, given * width);
    int result = barrier(comm);
    if (result) return result;
    for (int r = 0; r < comm->size; r++)
        if (memcmp(&s->cards[r][RANKS], &mine, sizeof mine)) result = INVALID_USAGE;
    if (!result) {
        if (verb == 4) for (int r = 0; r < comm->size; r++) memcpy(into + r * given * width, s->data[r], given * width);
        else if (verb == 3) memcpy(into, s->data[root], got * width);
        else if (verb != 2 || comm->rank == root) {
            size_t skip = verb == 5 ? comm->rank * got * width : 0;
            memcpy(into, s->data[0] + skip, got * width);
            for (int r = 1; r < comm->size && !result; r++) result = fold(into, s->data[r] + skip, got, dtype, op);
        }
    }
    int end = barrier(comm);
    return result ? result : end;
}

ncclResult_t ncclAllReduce(uint64_t send, uint64_t recv, size_t n, int dtype, int op, ncclComm_t comm, void *stream) { return together(1, send, recv, n, n, dtype, op, 0, comm, stream); }
ncclResult_t ncclReduce(uint64_t send, uint64_t recv, size_t n, int dtype, int op, int root, ncclComm_t comm, void *stream) { return together(2, send, recv, n, n, dtype, op, root, comm, stream); }
ncclResult_t ncclBroadcast(uint64_t send, uint64_t recv, size_t n, int dtype, int root, ncclComm_t comm, void *stream) { return together(3, send, recv, n, n, dtype, -1, root, comm, stream); }
ncclResult_t ncclAllGather(uint64_t send, uint64_t recv, size_t n, int dtype, ncclComm_t comm, void *stream) { return together(4, send, recv, n, comm ? n * comm->size : n, dtype, -1, 0, comm, stream); }
ncclResult_t ncclReduceScatter(uint64_t send, uint64_t recv, size_t n, int dtype, int op, ncclComm_t comm, void *stream) { return together(5, send, recv, comm ? n * comm->size : n, n, dtype, op, 0, comm, stream); }

static int finish(void);
static int message(int sends, uint64_t at, size_t n, int dtype, int peer, ncclComm_t comm, void *stream) {
    if (!comm || !stream || dtype < 0 || dtype > 9 || peer < 0 || peer >= comm->size) return INVALID_ARGUMENT;
    char *there = bytes_of(at, n * widths[dtype]);
    if (!there) return INVALID_ARGUMENT;
    if (peer == comm->rank && !depth) return INVALID_USAGE; /* a lone message to oneself would never end */
    if (!depth) messages = 0;
    queued[messages++] = (Message){sends, peer, dtype, n * widths[dtype], there, comm};
    return depth ? OK : finish();
}
ncclResult_t ncclSend(uint64_t at, size_t n, int dtype, int peer, ncclComm_t comm, void *stream) { return message(1, at, n, dtype, peer, comm, stream); }
ncclResult_t ncclRecv(uint64_t at, size_t n, int dtype, int peer, ncclComm_t comm, void *stream) { return message(0, at, n, dtype, peer, comm, stream); }
ncclResult_t ncclGroupStart(void) { depth++; messages = 0; return OK; }
ncclResult_t ncclGroupEnd(void) {
    if (!depth) return INVALID_USAGE;
    depth--;
    return messages ? finish() : INVALID_USAGE; /* every rank has messages where hpcomm makes a group */
}
static int finish(void) {
    ncclComm_t comm = queued[0].comm;
    Shared *s = comm->shared;
    size_t part = ROOM / comm->size;
    memset(s->cards[comm->rank], 0, sizeof s->cards[0]);
    for (int i = 0; i < messages; i++)
        if (queued[i].sends) {
            if (queued[i].nbytes > part) return INVALID_ARGUMENT;
            s->cards[comm->rank][queued[i].peer] = (Card){1, queued[i].dtype, 0, 0, queued[i].nbytes};
            memcpy(s->data[comm->rank] + queued[i].peer * part, queued[i].at, queued[i].nbytes);
        }
    int result = barrier(comm);
    for (int i = 0; i < messages && !result; i++)
        if (!queued[i].sends) {
            Card *card = &s->cards[queued[i].peer][comm->rank];
            if (!card->verb || card->count != queued[i].nbytes || card->dtype != queued[i].dtype) result = INVALID_USAGE;
            else memcpy(queued[i].at, s->data[queued[i].peer] + comm->rank * part, queued[i].nbytes);
        }
    int end = barrier(comm);
    messages = 0;
    return result ? result : end;
}
