/* fuzz_dtrun.c: what dtrun hears, under libFuzzer. Byte 0 modulo 4:
       0  machine 0 reads the frames of an agent: byte 1 the state, byte 2 the bytes that arrive at a time
       1  an agent reads the frames of machine 0; ranks run, so that no process is started
       2  the body of the first frame over ssh
       3  the list of --hosts
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
        h.kind = p[0] % 12;
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
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static char frames[1 << 15], *argv[1] = { NULL };
    size_t      used = n - 3;
    if (n < 3 || n > 4096) return 0;
    out_sink.gone = err_sink.gone = true; /* nothing is shown */
    over = fatal = is_agent = false;
    blamed = -1;
    norder = user_signal = nnodes = nprocs = 0;
    running = 1;
    deadline = flush_until = INT64_MAX;
    opt.nproc = 2;
    opt.grace = 0;
    opt.argv = argv;
    if (data[0] & 4) used = dtrun_frames(frames, sizeof frames, data + 3, n - 3);
    else memcpy(frames, data + 3, n - 3);
    switch (data[0] % 4) {
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
    default: {
        char why[300], list[4097];
        memcpy(list, data + 3, n - 3);
        list[n - 3] = 0;
        bool good = hosts_parse(list, why, sizeof why);
        if (good != !why[0] || (good && nnodes < 1) || nnodes > NODES_MAX) abort();
        for (int i = 0; i < nnodes; i++)
            if (!nodes[i].host[0] || nodes[i].host[0] == '-' || strpbrk(nodes[i].host, " \t\n'\"\\$`;&|<>(),")) abort();
        free(nodes);
        nodes = NULL;
    }
    }
    return 0;
}
