/* channel.c: from one sender to one receiver, through two boxes used in turn.

        sender                    receiver
        wait until empty          wait until full: number << 1 | 1 of this use
        fill, nbytes, tag         read
        full = number << 1 | 1    full = 0

   Both write the word of a box, but never at the same time: who may write is told by what stands there. What is
   longer than a box goes in pieces of it, one behind another. Faces of halos are packed straight into a box and
   unpacked from there (channel_box), so they are copied once by each. */
#include "node.h"

static struct node_box *box(const struct channel *c) { return &c->at->box[c->count & 1]; }
static char *data(const struct channel *c) {
  return (char *)(c->at + 1) + (c->count & 1) * node_peek(&c->at->capacity);
}
static uint64_t word(const struct channel *c, int to_fill) { return to_fill ? 0 : (c->count << 1) | 1; }

void channel_attach(struct channel *c, struct segment *s, struct node_channel *at, int peer) {
  c->node.segment = s;
  c->at = at;
  c->count = 0;
  c->peer = peer;
}

char *channel_box(struct channel *c, int to_fill) {
  int bad = node_wait(&c->node, &box(c)->full, NODE_AT_VALUE, word(c, to_fill), c->peer);
  if (bad == 0) return data(c);
  if (bad != -100) node_fail(&c->node, -bad, c->peer);
  return NULL;
}

char *channel_ready(struct channel *c, int to_fill) {
  return node_load(&box(c)->full) == word(c, to_fill) ? data(c) : NULL;
}

void channel_fill(struct channel *c, size_t nbytes, uint64_t tag) {
  struct node_box *at = box(c);
  at->nbytes = nbytes;
  at->tag = tag;
  node_post(&at->full, (c->count << 1) | 1);
  c->count++;
}

void channel_free(struct channel *c) {
  node_post(&box(c)->full, 0);
  c->count++;
}

size_t channel_nbytes(const struct channel *c) { return box(c)->nbytes; }
uint64_t channel_tag(const struct channel *c) { return box(c)->tag; }

/* nbytes of a box is what is left of the message, so that both see at once whether they mean the same. */
int channel_send(struct channel *c, const char *x, size_t nbytes, uint64_t tag) {
  const size_t most = node_peek(&c->at->capacity);
  do {
    size_t length = nbytes < most ? nbytes : most;
    char *to = channel_box(c, 1);
    if (!to) return -1;
    memcpy(to, x, length);
    channel_fill(c, nbytes, tag);
    x += length;
    nbytes -= length;
  } while (nbytes);
  return 0;
}

int channel_receive(struct channel *c, char *out, size_t nbytes, uint64_t tag) {
  const size_t most = node_peek(&c->at->capacity);
  do {
    size_t length = nbytes < most ? nbytes : most;
    const char *from = channel_box(c, 0);
    if (!from) return -1;
    if (channel_nbytes(c) != nbytes || channel_tag(c) != tag) return node_fail(&c->node, NODE_MISMATCH, c->peer);
    memcpy(out, from, length);
    channel_free(c);
    out += length;
    nbytes -= length;
  } while (nbytes);
  return 0;
}
