/* fuzz_dtrun.c: what dtrun hears, under libFuzzer. Byte 0 modulo 4, and 4 more if its bit 3 is set:
       0  machine 0 reads the frames of an agent: byte 1 the state, byte 2 the bytes that arrive at a time
       1  an agent reads the frames of machine 0; ranks run, so that no process is started
       2  the body of the first frame over ssh
       3  the list of --hosts
       4  as 0, in an elastic job: also the reports of ranks
       5  the frame with which an agent starts ranks
       6  a hosts file
       7  a report, and what --add and --remove send
   Frames have their headers; with bit 2 of byte 0 they have a kind, a rank and a length of 2 bytes. */
#define main dtrun_main
#include "tools/dtrun.c"
#undef main

enum { FUZZ_NODES = 3, FUZZ_WORLD = 6 };
static size_t dtrun_frames(char *out, size_t room, const uint8_t *p, size_t n)
{
    size_t used = 0;
    while (n >= 4 && room - used >= sizeof(dt__chead)) {
        dt__chead h;
        h.magic = DT__CFRAME_MAGIC;
        h.kind = p[0] % (F_REPLY + 1);
        h.rank = (int)p[1] % 8 - 1;
        h.nbytes = (uint32_t)(p[2] | p[3] << 8);
        size_t body = n - 4 < h.nbytes ? n - 4 : h.nbytes;
        memcpy(out + used, &h, sizeof h);
        used += sizeof h;
        if (body > room - used) body = room - used;
        memcpy(out + used, p + 4, body);
        used += body;
        p += 4 + body;
        n -= 4 + body;
    }
    return used;
}
static void dtrun_feed(link_ *l, frame_fn fn, const char *p, size_t n, size_t step)
{
    const char *why = NULL;
    for (size_t at = 0; at < n && !why && !l->gone; at += step) {
        bytes_add(&l->rx, p + at, n - at < step ? n - at : step);
        why = link_frames(l, fn);
        if (!why && !l->gone && l->rx.n > FRAME_MOST + sizeof(dt__chead) + step) abort();
    }
    free(l->rx.p);
    free(l->tx.p);
    memset(&l->rx, 0, sizeof l->rx);
    memset(&l->tx, 0, sizeof l->tx);
}
static void dtrun_controller(const uint8_t *data, const char *p, size_t n)
{
    nnodes = FUZZ_NODES;
    world = FUZZ_WORLD;
    nodes = (node *)calloc(FUZZ_NODES, sizeof *nodes);
    state = data[1] % (KILLING + 1);
    ends = state == GATHERING ? NULL : (ending *)calloc(FUZZ_WORLD, sizeof *ends);
    outputs = (rank_output **)calloc(FUZZ_WORLD, sizeof *outputs);
    for (int i = 0; i < FUZZ_NODES; i++) {
        nodes[i].link.in = nodes[i].link.out = nodes[i].ssh_fd = nodes[i].err_fd = -1;
        nodes[i].link.gone = i != 1;
        nodes[i].link.id = i;
        nodes[i].joined = state != GATHERING;
        nodes[i].nproc = nodes[i].alive = state == GATHERING ? 0 : 2;
        nodes[i].first = 2 * i;
    }
    nodes[0].mine = data[1] & 64;
    dtrun_feed(&nodes[1].link, node_frame, p, n, 1 + data[2]);
    for (int i = 0; i < FUZZ_NODES; i++)
        if (nodes[i].alive < 0 || nodes[i].alive > RANKS_MAX || memchr(nodes[i].host, 0, sizeof nodes[i].host) == NULL) abort();
    if (blamed >= FUZZ_WORLD || (blamed >= 0 && !ends[blamed].ended)) abort();
    if (blamed >= 0) blame_say();
    outputs_reset();
    for (int i = 0; ends && i < FUZZ_WORLD; i++) free(ends[i].tail);
    for (int i = 0; i < FUZZ_NODES; i++) free(nodes[i].link.tx.p);
    free(ends);
    free(outputs);
    free(nodes);
    ends = NULL;
    outputs = NULL;
    nodes = NULL;
}
static void dtrun_elastic(const uint8_t *data, const char *p, size_t n)
{
    opt.elastic = true;
    opt.min = 2;
    opt.max = 8;
    opt.max_restarts = (data[1] >> 4) - 1;
    nnodes = FUZZ_NODES;
    nodes = (node *)calloc(FUZZ_NODES, sizeof *nodes);
    state = data[1] % (KILLING + 1);
    for (int i = 0; i < FUZZ_NODES; i++) {
        nodes[i].link.in = nodes[i].link.out = nodes[i].ssh_fd = nodes[i].err_fd = -1;
        nodes[i].link.gone = i != 1;
        nodes[i].link.id = i;
        nodes[i].joined = state != GATHERING;
        nodes[i].room = 2 + i;
        nodes[i].asker = -1;
    }
    if (state != GATHERING) {
        el.formed = data[1] & 8;
        el.generation = el.step = el.hold = el.short_said = -1;
        for (int r = 0; r < FUZZ_WORLD; r++) {
            member_add(r, r / 2, r == FUZZ_WORLD - 1);
            el.m[r].in = r < FUZZ_WORLD - 1 && el.formed;
        }
        el.next = FUZZ_WORLD;
        world_set(FUZZ_WORLD);
    }
    dtrun_feed(&nodes[1].link, node_frame, p, n, 1 + data[2]);
    elastic_look();
    int alive = 0;
    for (int i = 0; i < FUZZ_NODES; i++) {
        if (nodes[i].alive != members_on(i)) abort();
        alive += nodes[i].alive;
    }
    if (el.nm != alive || el.want > RANKS_MAX || (state == RUNNING && el.nm > opt.max)) abort();
    for (int i = 0; i < el.nm; i++)
        if (el.m[i].node < 0 || el.m[i].node >= FUZZ_NODES || el.m[i].id >= el.next) abort();
    if (alive == 0 && state != GATHERING && !over) elastic_over();
    outputs_reset();
    bad_clear(-1);
    free(el.m);
    free(el.bad);
    memset(&el, 0, sizeof el);
    for (int i = 0; i < FUZZ_NODES; i++) {
        free(nodes[i].link.rx.p);
        free(nodes[i].link.tx.p);
    }
    free(outputs);
    free(nodes);
    outputs = NULL;
    nodes = NULL;
    opt.elastic = false;
}
static void dtrun_small(int what, const uint8_t *p, size_t n)
{
    if (what == 5) {
        start s;
        memset(&s, 0xff, sizeof s);
        memcpy(&s, p, n < sizeof s ? n : sizeof s);
        running = s.max ? 0 : running;
        if (start_check(&s) && (s.first < 0 || s.count < 1 || s.count > RANKS_MAX || s.first > INT_MAX - s.count || strlen(s.join) >= sizeof s.join ||
                                strlen(s.addr) >= sizeof s.addr || (s.max && !s.join[0] && s.first + s.count > s.world)))
            abort();
    } else if (what == 6) {
        char       why[600], *copy = (char *)malloc(n + (n == 0)); /* its own size: a byte more is seen */
        int        count = 0;
        memcpy(copy, p, n);
        host_line *l = host_lines(copy, n, "hosts", 3, &count, why, sizeof why);
        if (!l != (why[0] != 0) || (l && (count < 1 || count > NODES_MAX))) abort();
        for (int i = 0; l && i < count; i++) {
            if (!host_good(l[i].host) || l[i].room < 1 || l[i].room > RANKS_MAX || l[i].line < 1) abort();
            if (hosts_room(l, count, l[i].host) != l[i].room) abort();
        }
        free(l);
        free(copy);
    } else {
        dt__elastic_report r;
        char               body[200];
        memset(&r, 0xff, sizeof r);
        memcpy(&r, p, n < sizeof r ? n : sizeof r);
        if (report_check(&r) && (r.about > INT_MAX || strlen(r.address) >= sizeof r.address || strpbrk(r.address, " \n\t") || strpbrk(r.text, "\n\033")))
            abort();
        size_t k = n < sizeof body ? n : sizeof body;
        memcpy(body, p, k);
        if (k && ask_check(k % 2 ? F_ADD : F_REMOVE, p[0], body, k) && (!host_good(body) || strlen(body) > 79)) abort();
    }
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static char frames[1 << 15], *argv[1] = { NULL };
    size_t      used = n - 3;
    if (n < 3 || n > 4096) return 0;
    out_sink.gone = err_sink.gone = true; /* nothing is shown */
    over = fatal = is_agent = false;
    blamed = -1;
    norder = user_signal = nnodes = nprocs = world = epoch = 0;
    running = 1;
    deadline = flush_until = INT64_MAX;
    opt.nproc = 2;
    opt.grace = 0;
    opt.argv = argv;
    if (data[0] & 4) used = dtrun_frames(frames, sizeof frames, data + 3, n - 3);
    else memcpy(frames, data + 3, n - 3);
    switch (data[0] % 4 + (data[0] & 8 ? 4 : 0)) {
    case 0: dtrun_controller(data, frames, used); break;
    case 1:
        memset(&up, 0, sizeof up);
        up.in = up.out = -1;
        is_agent = opt.agent = true;
        dtrun_feed(&up, agent_frame, frames, used, 1 + data[2]);
        opt.agent = false;
        break;
    case 2: {
        job   j;
        char *body = (char *)malloc(n - 3 + (n == 3)); /* its own size: a byte more is seen */
        if (!body) abort();
        memcpy(body, data + 3, n - 3);
        if (job_check(body, n - 3, &j)) { /* as job_read walks through it */
            size_t at = sizeof j;
            for (int i = 0; i < 2 + j.nenv + j.argc; i++) at += strlen(body + at) + 1;
            if (at != n - 3) abort();
        }
        free(body);
        break;
    }
    case 4: dtrun_elastic(data, frames, used); break;
    case 5:
    case 6:
    case 7: dtrun_small(data[0] % 4 + 4, data + 3, n - 3); break;
    default: {
        char why[300], list[4097];
        memcpy(list, data + 3, n - 3);
        list[n - 3] = 0;
        bool good = hosts_parse(list, why, sizeof why);
        if (good != !why[0] || (good && nnodes < 1) || nnodes > NODES_MAX) abort();
        for (int i = 0; i < nnodes; i++)
            if (!nodes[i].host[0] || nodes[i].host[0] == '-' || !host_good(nodes[i].host)) abort();
        free(nodes);
        nodes = NULL;
    }
    }
    return 0;
}
