/* segment.c: one file of shared memory for a node, and who has which part of it.

   A place is a run of units. Who reserves one claims its units word by word, first fit, and gives back what it has
   if one of them is taken: no lock, so a rank that is killed here leaves units behind, but nobody waiting. Memory is
   taken from the system when a place is reserved: what cannot be had is refused there, instead of ending a process
   (SIGBUS) at its first store. So it would lie near whoever reserves it; where ranks run in several domains of memory (NUMA),
   the system is told before where each rank's part is to be. The last rank that leaves a place frees it; a rank that was killed never leaves, so
   its places are never used again while the file lasts. */
#include "node.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MPOL_PREFERRED 1             /* linux/mempolicy.h: there, or elsewhere if nothing is left there */
#define MAGIC 0x65646f6e6d6d6f63ull /* "commnode" */

static size_t units_of(size_t nbytes) { return (nbytes + NODE_UNIT - 1) / NODE_UNIT; }
static size_t first_unit(size_t units) { return units_of(sizeof(struct node_head) + units * sizeof(uint32_t)); }

size_t segment_bytes(size_t nbytes) { return units_of(nbytes) * NODE_UNIT; }

/* Map the file, which has this many bytes; the rank that creates it writes the head. */
int segment_open(struct segment *s, int file, size_t nbytes, int create) {
  struct stat about;
  if (fstat(file, &about)) return errno;
  if ((uint64_t)about.st_size < nbytes || nbytes % NODE_UNIT || nbytes < 2 * NODE_UNIT) return EINVAL;
  if (create) {
    int none = posix_fallocate(file, 0, (off_t)(first_unit(nbytes / NODE_UNIT) * NODE_UNIT));
    if (none) return none;
  }
  void *at = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) return errno;
  s->head = at;
  s->nbytes = nbytes;
  s->file = file;
  if (create) {
    s->head->version = NODE_VERSION;
    s->head->nbytes = nbytes;
    s->head->units = nbytes / NODE_UNIT;
    node_post(&s->head->magic, MAGIC);
    return 0;
  }
  if (node_load(&s->head->magic) == MAGIC && s->head->version == NODE_VERSION && s->head->nbytes == nbytes) return 0;
  munmap(at, nbytes);
  s->head = NULL;
  return EPROTO;
}

void segment_close(struct segment *s) {
  if (s->head) munmap(s->head, s->nbytes);
  s->head = NULL;
}

static void free_units(struct segment *s, size_t first, size_t count) {
  for (size_t i = 0; i < count; i++) atomic_store_explicit(&s->head->owner[first + i], 0, memory_order_release);
}

static int claim(struct segment *s, size_t first, size_t count) { /* how many could be claimed before one was taken */
  for (size_t i = 0; i < count; i++) {
    uint32_t is_free = 0;
    if (!atomic_compare_exchange_strong(&s->head->owner[first + i], &is_free, 1)) {
      free_units(s, first, i);
      return (int)i;
    }
  }
  return (int)count;
}

/* Whole pages; where the system forbids it, as in many containers, they are near us. */
static void place_parts(char *at, struct parts parts) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  for (int r = 0; r < parts.ranks; r++) {
    unsigned long domains[256 / (8 * sizeof(long))] = {0};
    const unsigned domain = parts.domains[r], bits = 8 * sizeof *domains;
    const size_t from = parts.head + (size_t)r * parts.size, begin = r ? from / page * page : 0;
    const size_t end = (from + parts.size) / page * page;
    domains[domain / bits] = 1ul << domain % bits;
    (void)!syscall(SYS_mbind, at + begin, end - begin, MPOL_PREFERRED, domains, 257ul, 0u);
  }
}

static int are_apart(struct parts parts) {
  int apart = 0;
  for (int r = 1; parts.domains && r < parts.ranks; r++) apart |= parts.domains[r] != parts.domains[0];
  return apart;
}

/* Memory that nobody else has, at the start of a unit; what stands there is not cleared. */
void *segment_reserve(struct segment *s, struct parts parts, uint64_t *units) {
  size_t count = units_of(parts.head + (size_t)parts.ranks * parts.size), first = first_unit(s->head->units), end = s->head->units;
  while (first + count <= end) {
    size_t got = (size_t)claim(s, first, count);
    if (got < count) {
      first += got + 1;
      continue;
    }
    *units = count;
    int bad;
    if (are_apart(parts)) place_parts((char *)s->head + first * NODE_UNIT, parts);
    do bad = posix_fallocate(s->file, (off_t)(first * NODE_UNIT), (off_t)(count * NODE_UNIT));
    while (bad == EINTR); /* older systems, at any signal */
    if (!bad) return (char *)s->head + first * NODE_UNIT;
    free_units(s, first, count);
    return NULL;
  }
  return NULL;
}

/* give_back: the memory itself too, to the system. */
void segment_release(struct segment *s, void *at, uint64_t units, int give_back) {
  size_t offset = (size_t)((char *)at - (char *)s->head);
  if (give_back)
    (void)!fallocate(s->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)(units * NODE_UNIT));
  free_units(s, offset / NODE_UNIT, units);
}

struct node_place *node_reserve(struct segment *s, int size, const unsigned char *domains) {
  uint64_t units;
  struct node_place *place =
      segment_reserve(s, (struct parts){sizeof *place, sizeof(struct node_rank), size, domains}, &units);
  if (!place) return NULL;
  memset(place, 0, sizeof *place);
  place->size = (uint64_t)size;
  place->units = units;
  for (int r = 0; r < size; r++) { /* words only: nobody reads data before an arrival */
    struct node_rank *rank = &place->rank[r];
    memset(rank, 0, offsetof(struct node_rank, cell));
    rank->status.domain = domains ? domains[r] : 0;
    for (int i = 0; i < NODE_CELLS; i++) rank->cell[i].arrival = rank->cell[i].signature = 0;
  }
  return place;
}

struct node_channel *channel_reserve(struct segment *s, size_t capacity) {
  uint64_t units;
  if (capacity > s->nbytes / 2) return NULL;
  capacity = (capacity + NODE_LINE - 1) / NODE_LINE * NODE_LINE;
  struct node_channel *channel = segment_reserve(s, (struct parts){.head = sizeof *channel + 2 * capacity}, &units);
  if (!channel) return NULL;
  memset(channel, 0, sizeof *channel);
  channel->units = units;
  channel->capacity = capacity;
  return channel;
}

/* This rank has left; the last one frees the units. 1 if that was we. */
int node_leave(struct segment *s, struct node_place *place) {
  const uint64_t size = place->size; /* it may be another place once we have left */
  const uint64_t left = atomic_fetch_add(&place->left, 1) + 1;
  node_stop_point();
  if (left < size) return 0;
  uint64_t pieces = node_load(&place->pieces);
  if (pieces > NODE_NO_PIECES) segment_release(s, (char *)s->head + pieces, place->piece_units, 1);
  for (uint64_t r = 0; r < size; r++)
    for (uint64_t at = node_load(&place->rank[r].mail.inbox), next; at; at = next) {
      struct mail_queue *queue = (struct mail_queue *)((char *)s->head + at);
      next = queue->next;
      segment_release(s, queue, queue->units, 1);
    }
  segment_release(s, place, place->units, 0);
  return 1;
}

int channel_leave(struct segment *s, struct node_channel *channel) {
  if (atomic_fetch_add(&channel->left, 1) + 1 < 2) return 0;
  segment_release(s, channel, channel->units, channel->units > 4);
  return 1;
}
