/* dtplan_scale.h - every collective and every pipeline schedule at thousands of ranks, and where the choice changes. Part of
   dtplan.c. */
static void write_devices(FILE *f)
{
    fprintf(f, "%-18s %14s %14s %12s %8s\n", "device", "speed", "16-bit", "bandwidth", "memory");
    for (int i = 0; dt_scale_device_name(i); i++) {
        dt_scale_device d;
        if (dt_scale_device_find(dt_scale_device_name(i), &d)) quit("%s", dt_plan_error());
        fprintf(f, "%-18s %14s %14s %12s %8s\n", d.name, shown(d.speed, DT_SCALE_SPEED), shown(d.half_speed, DT_SCALE_SPEED),
                R(d.bandwidth), B(d.memory));
    }
    fprintf(f, "\n%-18s %14s %14s\n", "link", "rate", "latency");
    for (int i = 0; dt_scale_link_name(i); i++) {
        dt_scale_link l;
        if (dt_scale_link_find(dt_scale_link_name(i), &l)) quit("%s", dt_plan_error());
        fprintf(f, "%-18s %14s %14s\n", l.name, R(l.rate), S(l.latency));
    }
}
static double now(void) /* seconds of processor time */
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); /* one thread */
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
/* Each collective and algorithm by the steps of all ranks in virtual time. 0: all are done in less than 10 s each. */
static int write_scale(FILE *f, const question *q)
{
    int          ranks = q->ranks, slow = 0, *host = (int *)room((size_t)ranks, sizeof *host);
    int64_t      count = 1 << 20;
    dt_cluster   k;
    dt_plan_opts o;
    memset(&k, 0, sizeof k);
    memset(&o, 0, sizeof o);
    int each = q->c.per_machine;
    for (int i = 0; i < ranks; i++) host[i] = i / each;
    k.costs = dt_costs_default();
    k.costs.alpha[DT_LINK_SHM] = q->c.intra.latency, k.costs.beta[DT_LINK_SHM] = 1 / q->c.intra.rate;
    k.costs.alpha[DT_LINK_NET] = q->c.inter.latency, k.costs.beta[DT_LINK_NET] = 1 / q->c.inter.rate;
    k.costs.gamma = q->c.device.bandwidth > 0 ? 3 / q->c.device.bandwidth : 1 / 8e9;
    k.nic = q->c.shared ? 1 / q->c.inter.rate : -1;
    o.world = ranks;
    o.host = host;
    fprintf(f,
            "%d ranks on machines with %d: inside %s and %s a message, between machines %s and %s.\nVectors of 4 MiB in all; "
            "predicted by the steps of all ranks.\n\n",
            ranks, each, R(q->c.intra.rate), S(q->c.intra.latency), R(q->c.inter.rate), S(q->c.inter.latency));
    fprintf(f,
            "| collective | algorithm | predicted | messages | bytes of a card | computed in |\n|---|---|---|---|---|---|\n");
    for (int c = DT_COLL_BARRIER; c < (int)DT_COLL_SEND; c++)
        for (int a = DT_ALGO_DIRECT; a < (int)DT_ALGO_COUNT; a++) {
            dt_plan_prediction p;
            const char        *why = NULL;
            if (!dt_plan_can((dt_coll)c, (dt_algo)a, ranks, host) || a == DT_ALGO_NATIVE) continue;
            bool   whole_vector = c == DT_COLL_ALLREDUCE || c == DT_COLL_BROADCAST || c == DT_COLL_REDUCE;
            double t0 = now();
            o.count = c == DT_COLL_BARRIER ? 0 : whole_vector ? count : count / ranks > 0 ? count / ranks : 1;
            o.segment = a == DT_ALGO_CHAIN ? 4096 : 0;
            int    status = dt_plan_predict(&p, (dt_coll)c, (dt_algo)a, &o, &k, &why);
            double took = now() - t0;
            slow += took >= 10;
            if (status)
                fprintf(f, "| %s | %s | %s | | | %.2f s |\n", dt_coll_name((dt_coll)c), dt_algo_name((dt_algo)a), why, took);
            else
                fprintf(f, "| %s | %s | %s | %lld | %s | %.2f s |\n", dt_coll_name((dt_coll)c), dt_algo_name((dt_algo)a),
                        S(p.seconds), (long long)p.messages, B((double)p.bytes_nic), took);
            fflush(f);
        }
    fprintf(f,
            "\n| schedule of a pipeline of %d ranks | micro-batches | step, if F = B = W = 1 ms | idle | held by rank 0 | "
            "computed in |\n|---|---|---|---|---|---|\n",
            ranks);
    for (int i = 0; i < (int)DT_PIPE_KIND_COUNT; i++) {
        dt_pipe_opts  s;
        dt_pipe_times t;
        memset(&s, 0, sizeof s);
        memset(&t, 0, sizeof t);
        s.kind = (dt_pipe_kind)i;
        s.ranks = ranks;
        s.chunks = i == DT_PIPE_INTERLEAVED ? 2 : 1;
        s.micro = i == DT_PIPE_INTERLEAVED ? ranks : ranks / 4 > 0 ? ranks / 4 : 1;
        t.forward = t.backward_input = t.backward_weight = 1e-3 / s.chunks;
        t.transfer = 1e-5;
        double            t0 = now();
        dt_pipe_schedule *x = dt_pipe_schedule_new_with(s);
        dt_pipe_timing   *y = x && !dt_pipe_check(x) ? dt_pipe_simulate_with(x, t) : NULL;
        double            took = now() - t0;
        slow += took >= 10;
        if (y)
            fprintf(f, "| %s | %d | %s | %.1f %% | %lld | %.2f s |\n", dt_pipe_kind_name(s.kind), s.micro, S(y->seconds),
                    100 * y->bubble, (long long)(y->held[0] / s.chunks), took);
        else fprintf(f, "| %s | %d | %s | | | %.2f s |\n", dt_pipe_kind_name(s.kind), s.micro, dt_plan_error(), took);
        fflush(f);
        dt_pipe_timing_free(y);
        dt_pipe_schedule_free(x);
    }
    free(host);
    return slow ? 1 : 0;
}
/* A row for each collective, a colour for each algorithm, sizes from 1 byte to 1 GiB */
static void write_crossovers(FILE *f, const question *q)
{
    static const char *const colour[] = { "#ccc",    "#9e6c3a", "#b8860b", "#4c78a8", "#f58518", "#54a24b",
                                          "#e45756", "#72b7b2", "#b279a2", "#ff9da6", "#888",    "#5f9ea0",
                                          "#6b8e23", "#d2691e", "#483d8b", "#000",    "#2f4f4f" };
    const int ranks = q->c.machines * q->c.per_machine, steps = 240, W = 820, left = 120, row_high = 26, top = 50;
    int *host = (int *)room((size_t)ranks, sizeof *host), rows_drawn = 0, link = q->c.machines > 1 ? DT_LINK_NET : DT_LINK_SHM;
    unsigned used = 0;
    dt_costs t = dt_costs_default();
    t.alpha[DT_LINK_SHM] = q->c.intra.latency, t.beta[DT_LINK_SHM] = 1 / q->c.intra.rate;
    t.alpha[DT_LINK_NET] = q->c.inter.latency,
    t.beta[DT_LINK_NET] = 1 / (q->c.shared ? q->c.inter.rate : q->c.inter.rate * q->c.per_machine);
    t.gamma = q->c.device.bandwidth > 0 ? 3 / q->c.device.bandwidth : 1 / 8e9;
    for (int i = 0; i < ranks; i++) host[i] = i / q->c.per_machine;
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"340\" viewBox=\"0 0 %d "
            "340\">\n<style>text{font:12px sans-serif;fill:#333}</style>"
            "<rect width=\"%d\" height=\"340\" fill=\"#fff\"/>\n<text x=\"%d\" y=\"24\" "
            "style=\"font-size:15px;font-weight:bold\">The algorithm chosen, by bytes: %d ranks on %d machine%s</text>\n",
            W, W, W, left, ranks, q->c.machines, q->c.machines > 1 ? "s" : "");
    for (int c = DT_COLL_ALLREDUCE; c < (int)DT_COLL_SEND; c++, rows_drawn++) {
        dt_algo before = DT_ALGO_COUNT;
        int     from = 0, y = top + row_high * rows_drawn;
        fprintf(f, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", left - 8, y + 16, dt_coll_name((dt_coll)c));
        for (int i = 0; i <= steps; i++) {
            int64_t n = (int64_t)pow(2, 30.0 * i / steps);
            dt_algo a = i < steps ? dt_plan_choose(&t, (dt_coll)c, ranks, host, link, n, NULL) : DT_ALGO_COUNT;
            if (a == before) continue;
            if (before != DT_ALGO_COUNT) {
                used |= 1u << before;
                fprintf(f,
                        "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"><title>%s from %s</title></rect>\n",
                        left + (W - left - 20.0) * from / steps, y, (W - left - 20.0) * (i - from) / steps, row_high - 4,
                        colour[before], dt_algo_name(before), B(pow(2, 30.0 * from / steps)));
            }
            before = a;
            from = i;
        }
    }
    int y = top + row_high * rows_drawn + 14, x = left;
    for (int i = 0; i <= 30; i += 5)
        fprintf(f, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%d %s</text>\n", left + (W - left - 20.0) * i / 30, y,
                1 << i % 10,
                i < 10   ? "B"
                : i < 20 ? "KiB"
                : i < 30 ? "MiB"
                         : "GiB");
    y += 30;
    for (int a = 0; a < (int)DT_ALGO_COUNT; a++) {
        if (!(used >> a & 1u)) continue;
        fprintf(f, "<rect x=\"%d\" y=\"%d\" width=\"14\" height=\"14\" fill=\"%s\"/><text x=\"%d\" y=\"%d\">%s</text>\n", x,
                y - 11, colour[a], x + 18, y, dt_algo_name((dt_algo)a));
        x += 92;
    }
    fprintf(f, "</svg>\n");
    free(host);
}
