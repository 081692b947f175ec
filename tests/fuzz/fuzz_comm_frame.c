/* fuzz_comm_frame.c: data frames over TCP that meet posted receives, under libFuzzer. Bytes: 0 streams, 1 how the
   sockets behave, 2 dtype and reduction; then messages, one after the other on one link:
       bits 0 reduced into the buffer, 1 from the left, 2 the header is as it follows (a dt__frame), 3 large if the last
       byte is 0x55; 2 bytes: length; 1 byte: which of the header's bytes is changed (beyond it: none), 1 byte: how.
   What does not match fails and leaves the buffer alone; what does arrives whole. */
#define DT_IMPLEMENTATION
#include "fuzz_comm.h"

enum { FRAME_FOLD = 1, FRAME_LEFT = 2, FRAME_RAW = 4, FRAME_LARGE = 8, FRAME_STREAMS = 3, FRAME_ALL = 1 << 19 };

static bool frame_same(dt__frame a, dt__frame b) /* but for what may differ */
{
    a.sent = b.sent = 0;
    a.late = b.late = 0;
    a.rank = b.rank = a.late_rank = b.late_rank = a.zero = b.zero = 0;
    return memcmp(&a, &b, sizeof a) == 0;
}
static dt__msg frame_post(const dt_comm *c, uint64_t seq, int what, int dtype, int op, size_t n)
{
    dt__msg m;
    memset(&m, 0, sizeof m);
    m.dtype = dtype;
    m.op = op;
    m.fold = what & FRAME_FOLD;
    m.left = what & FRAME_LEFT;
    m.n = n / dt__elem_nbytes(dtype) * dt__elem_nbytes(dtype);
    m.head.magic = DT__FRAME_MAGIC;
    m.head.version = DT__FRAME_VERSION;
    m.head.comm = c->id;
    m.head.seq = seq;
    m.head.count = (int64_t)(m.n / dt__elem_nbytes(dtype));
    m.head.nbytes = m.n;
    m.head.rank = 1;
    m.head.coll = m.fold ? DT_COLL_ALLREDUCE : DT_COLL_BROADCAST;
    m.head.dtype = (uint8_t)dtype;
    m.head.op = (uint8_t)op;
    m.head.algo = DT_ALGO_RING;
    return m;
}
/* One message; false: that was the last. */
static bool frame_meet(dt_comm *c, dt__msg m, dt__frame got, int streams, int how)
{
    static uint8_t wire[FRAME_ALL], pattern[FRAME_ALL];
    bool           fits = frame_same(m.head, got);
    int            parts = m.n < DT__TCP_STRIPE ? 1 : streams, r = 0;
    char          *buf = (char *)malloc(m.n + !m.n), *want = (char *)malloc(m.n + !m.n); /* a byte more is seen */
    uint8_t       *payload = wire + sizeof got;
    if (!pattern[1])
        for (size_t i = 0; i < sizeof pattern; i++) pattern[i] = (uint8_t)(i * 7 + i / 256);
    memcpy(payload, pattern + m.head.seq % 64, m.n);
    memcpy(buf, pattern + 100, m.n);
    memcpy(want, buf, m.n);
    memcpy(wire, &got, sizeof got);
    for (int s = 0; s < parts; s++) {
        size_t at = dt__tcp_part(m.n, parts, s), end = dt__tcp_part(m.n, parts, s + 1), head = s ? 0 : sizeof got;
        fuzz_wire_is(s, payload + at - head, end - at + head, m.n > 256 ? how & ~FUZZ_PIECES : how);
    }
    m.ptr = buf;
    long before = fuzz_allocs;
    for (int i = 0; i < 9999 && r == 0; i++) {
        r = dt__tcp_recv(c, 1, &m);
        dt__tcp *t = (dt__tcp *)c->across_data;
        if (r == 0 && t && t->link[1] && t->link[1]->died) break;
    }
    if (r != 0 && (r == 1) != fits) abort();
    if (fits && !(how & (FUZZ_CLOSED | FUZZ_RESET)) && r != 1) abort();
    if (!fits && (r >= 0 || c->status != r || !c->text[0] || c->failed_rank != 1)) abort();
    if (!fits && m.head.seq && fuzz_allocs != before) abort(); /* a link is there; a wrong header needs nothing */
    if (fits && r == 1) {
        if (m.fold) dt__fold(m.dtype, m.op, want, payload, m.head.count, m.left);
        else memcpy(want, payload, m.n);
    }
    if ((!fits || r == 1) && memcmp(buf, want, m.n) != 0) abort();
    free(buf);
    free(want);
    return r == 1;
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    dt_comm c;
    bool    large = false;
    if (n < 3) return 0;
    int streams = 1 + data[0] % FRAME_STREAMS, how = data[1], dtype = data[2] % DT_COMM_DTYPES,
        op = data[2] / 8 % DT_COMM_OPS;
    if (!dt__reduce_can(dtype, op)) op = DT_COMM_SUM;
    fuzz_begin();
    fuzz_most = FRAME_ALL;
    memset(&c, 0, sizeof c);
    c.client = &dt__comm_client;
    c.id = 77;
    c.size = 2;
    c.streams = streams;
    c.timeout = 30;
    c.failed_rank = c.wake_fd = -1;
    uint64_t seq = 0;
    for (size_t at = 3; n - at >= 5; seq++) {
        const uint8_t *p = data + at;
        size_t         length = (size_t)(p[1] | p[2] << 8) % 4200;
        if ((p[0] & FRAME_LARGE) && !large && p[4] == 0x55) length += DT__TCP_STRIPE, large = true;
        dt__msg   m = frame_post(&c, seq, p[0], dtype, op, length);
        dt__frame got = m.head;
        at += 5;
        if ((p[0] & FRAME_RAW) && n - at >= sizeof got) {
            memcpy(&got, data + at, sizeof got);
            at += sizeof got;
        }
        if (p[3] < sizeof got) ((uint8_t *)&got)[p[3]] ^= p[4];
        if (!frame_meet(&c, m, got, streams, how)) break;
    }
    dt__tcp_close(&c);
    fuzz_most = FUZZ_FRAME;
    fuzz_end();
    return 0;
}
