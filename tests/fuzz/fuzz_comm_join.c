/* fuzz_comm_join.c: what a joining rank hears from rank 0, under libFuzzer: the table, or with bit 0 of byte 0 the
   ticket. Bytes: 1 ranks of the world, 2 this one, 3 how the socket behaves; then the frames, with bit 1 of byte 0
   without their headers: kind, length (2 bytes), body. */
#define DT_IMPLEMENTATION
#include "fuzz_comm.h"

enum { JOIN_TICKET = 1, JOIN_HEADS = 2 };

/* Frames with their headers; how many bytes. */
static size_t join_frames(uint8_t *out, size_t room, const uint8_t *p, size_t n)
{
    size_t used = 0;
    while (n >= 3 && room - used >= sizeof(dt__chead)) {
        dt__chead h = { DT__CFRAME_MAGIC, fuzz_kind(p[0]), (uint32_t)(p[1] | p[2] << 8), 0 };
        size_t    body = n - 3 < h.nbytes ? n - 3 : h.nbytes;
        memcpy(out + used, &h, sizeof h);
        used += sizeof h;
        if (body > room - used) body = room - used;
        memcpy(out + used, p + 3, body);
        used += body;
        p += 3 + body;
        n -= 3 + body;
    }
    return used;
}
static void join_table(dt__world *w)
{
    int seen = 0;
    if (!dt__table_finish(w)) abort();
    for (int r = 0; r < w->size; r++) {
        const dt__member *m = &w->member[r];
        char              text[256];
        dt__addr          a;
        if (m->host < 0 || m->host > seen || m->local < 0 || m->local >= w->size) abort();
        seen += m->host == seen;
        if (strlen(m->host_name) >= sizeof m->host_name || strlen(m->unix_name) >= sizeof m->unix_name) abort();
        dt__rank_text(w, r, text, sizeof text);
        if (dt__addr_take(&a, m->addr, m->addr_len)) dt__addr_text(&a, text, sizeof text);
        dt__addr_unix(&a, m->unix_name);
    }
    if (seen != w->nhosts || w->local_size < 1 || w->local_rank >= w->local_size) abort();
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static uint8_t frames[1 << 15];
    dt__world      w;
    if (n < 4 || n > 4096) return 0;
    int size = 1 + data[1] % 64, how = data[3] & FUZZ_CLOSED ? data[3] : data[3] | FUZZ_RESET;
    fuzz_begin();
    fuzz_world(&w, data[2] % size, size);
    if (data[0] & JOIN_TICKET) {
        dt__config f;
        dt__ticket t;
        memset(&f, 0, sizeof f);
        memset(&t, 0, sizeof t);
        memcpy(&t, data + 4, n - 4 < sizeof t ? n - 4 : sizeof t);
        int got = dt__ticket_read(&f, &w, &t);
        if ((got == 1) != (f.naddr == 1) || (got == 1 && f.addr[0].n != t.addr_len)) abort();
    } else {
        size_t used = n - 4;
        if (data[0] & JOIN_HEADS) used = join_frames(frames, sizeof frames, data + 4, n - 4);
        else memcpy(frames, data + 4, n - 4);
        fuzz_wire_is(0, frames, used, how);
        if (dt__control_new(&w) < 0) abort();
        dt__control *ctl = w.control;
        dt__conn    *k = ctl->above = dt__conn_new(&w, FUZZ_FD, DT__KIND_REGISTER, 0);
        ctl->join = DT__JOIN_OPEN;
        k->state = DT__CONN_READY;
        for (int i = 0; i < 9999 && ctl->join == DT__JOIN_OPEN && k->state != DT__CONN_BROKEN; i++) dt__conn_read(&w, k);
        if (ctl->join == DT__JOIN_OPEN) abort(); /* the wire ends */
        if (ctl->join == DT__JOIN_COMPLETE) join_table(&w);
        if (ctl->join == DT__JOIN_FAILED && (!ctl->join_text[0] || !ctl->join_status)) abort();
        if (ctl->join == DT__JOIN_MOVES && (ctl->relay.rank < 1 || ctl->relay.rank >= size || ctl->relay.rank == w.rank)) abort();
    }
    fuzz_world_end(&w);
    fuzz_end();
    return 0;
}
