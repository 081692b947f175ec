/* test_power.c: checkpoints after a loss of power. The file calls of some saves are recorded. Then states of the disk are made
   that a loss of power at any call may leave: writes since the last fsync of their file are there, missing, torn at a sector or
   replaced by zeros, in any combination; creations, renames and removals since the last fsync of the directory are there or
   not, in any combination, so that a rename may be on the disk before the data. In each state the newest intact checkpoint must
   be the last one whose save had returned, or the one that was being saved, with exactly its bytes.
   run: asan-later */
#define DT_STATIC
#define DT_IMPLEMENTATION
#include "dt_nn.h"

#include "fault_files.h"

#include <fcntl.h>

UTEST_MAIN()

/* ==================================================================================================== recording */
enum { SAVES = 5, KEEP = 2, OPS = 400, FILES = 40, SECTOR = 512 };
enum { OP_CREATE = 1, OP_WRITE, OP_SYNC, OP_SYNC_DIR, OP_RENAME, OP_UNLINK, OP_DONE };
typedef struct op {
    int    kind, file; /* OP_DONE: file is the step whose save has returned */
    char   name[80], to[80];
    size_t at, n;
    char  *data;
} op;
static op               log_op[OPS];
static int              nops, nfiles, file_of[1024];
static size_t           place_of[1024]; /* by descriptor: its file (-1: none, -2: a directory), its position */
static struct dt__files real;

static op *log_add(int kind, int file, const char *name)
{
    if (nops == OPS) abort();
    op *o = &log_op[nops++];
    memset(o, 0, sizeof *o);
    o->kind = kind;
    o->file = file;
    const char *base = name ? strrchr(name, '/') : NULL;
    if (name) snprintf(o->name, sizeof o->name, "%s", base ? base + 1 : name);
    return o;
}
static int rec_open(const char *path, int flags, unsigned mode)
{
    int fd = real.open(path, flags, mode);
    if (fd < 0 || fd >= 1024) return fd;
    file_of[fd] = flags & O_DIRECTORY ? -2 : -1;
    place_of[fd] = 0;
    if (flags & O_CREAT) log_add(OP_CREATE, file_of[fd] = nfiles++, path);
    return fd;
}
static void rec_bytes(int fd, const void *p, ssize_t n, size_t at)
{
    if (n <= 0 || file_of[fd] < 0) return;
    op *o = log_add(OP_WRITE, file_of[fd], NULL);
    o->at = at;
    o->n = (size_t)n;
    o->data = (char *)malloc(o->n);
    if (!o->data) abort();
    memcpy(o->data, p, o->n);
}
static ssize_t rec_write(int fd, const void *p, size_t n)
{
    ssize_t k = real.write(fd, p, n > 1500 ? 1500 : n); /* more pieces, more states */
    rec_bytes(fd, p, k, place_of[fd]);
    if (k > 0) place_of[fd] += (size_t)k;
    return k;
}
static ssize_t rec_pwrite(int fd, const void *p, size_t n, off_t at)
{
    ssize_t k = real.pwrite(fd, p, n, at);
    rec_bytes(fd, p, k, (size_t)at);
    return k;
}
static int rec_fsync(int fd)
{
    int rc = real.fsync(fd);
    if (!rc && file_of[fd] != -1) log_add(file_of[fd] == -2 ? OP_SYNC_DIR : OP_SYNC, file_of[fd], NULL);
    return rc;
}
static int rec_rename(const char *a, const char *b)
{
    int rc = real.rename(a, b);
    if (!rc) snprintf(log_add(OP_RENAME, 0, a)->to, 80, "%s", strrchr(b, '/') + 1);
    return rc;
}
static int rec_unlink(const char *p)
{
    int rc = real.unlink(p);
    if (!rc) log_add(OP_UNLINK, 0, p);
    return rc;
}
/* Saves SAVES checkpoints, each with other values; their bytes go to whole[step]. */
static void record(const char *dir, char **whole, size_t *nbytes)
{
    dt_model *m = dt_model_new(.seed = 1);
    int64_t   mine = 0;
    dt_linear(m, "fc", dt_zeros(DT_SHAPE(2, 40)), .out = 9);
    dt_checkpoint *c = dt_checkpoint_new(dir, .model = m, .keep = KEEP);
    dt_checkpoint_add_integer(c, "mine", &mine);
    real = dt__fs;
    dt__fs.open = rec_open;
    dt__fs.write = rec_write;
    dt__fs.pwrite = rec_pwrite;
    dt__fs.fsync = rec_fsync;
    dt__fs.rename = rec_rename;
    dt__fs.unlink = rec_unlink;
    for (int step = 1; step <= SAVES; step++) {
        char path[4300];
        mine = 1000 + step;
        if (dt_checkpoint_save(c, 0, step)) abort();
        log_add(OP_DONE, step, NULL);
        snprintf(path, sizeof path, "%s/ckpt-%08d.safetensors", dir, step);
        whole[step] = files_read(path, &nbytes[step]);
    }
    dt__fs = real;
    dt_checkpoint_free(c);
    dt_model_free(m);
    dt_end();
}

/* ==================================================================================================== states */
typedef struct disk {
    struct {
        char name[80];
        int  file;
    } entry[FILES];
    int    nentries;
    char  *data[FILES];
    size_t n[FILES];
} disk;
static int entry_of(const disk *d, const char *name)
{
    for (int i = 0; i < d->nentries; i++)
        if (strcmp(d->entry[i].name, name) == 0) return i;
    return -1;
}
static void entry_set(disk *d, const char *name, int file) /* file < 0: removes it */
{
    int i = entry_of(d, name);
    if (file < 0) {
        if (i >= 0) d->entry[i] = d->entry[--d->nentries];
        return;
    }
    if (i < 0) i = d->nentries++;
    snprintf(d->entry[i].name, sizeof d->entry[i].name, "%s", name);
    d->entry[i].file = file;
}
static void disk_dir(disk *d, const op *o)
{
    if (o->kind == OP_CREATE) entry_set(d, o->name, o->file);
    else if (o->kind == OP_UNLINK) entry_set(d, o->name, -1);
    else if (o->kind == OP_RENAME) {
        int i = entry_of(d, o->name);
        if (i < 0) return; /* its creation was lost: so is the rename */
        entry_set(d, o->to, d->entry[i].file);
        entry_set(d, o->name, -1);
    }
}
static void disk_write(disk *d, const op *o, size_t from, size_t to, bool zeros)
{
    char **p = &d->data[o->file];
    size_t end = o->at + to;
    if (from >= to) return;
    if (end > d->n[o->file]) {
        *p = (char *)realloc(*p, end);
        if (!*p) abort();
        memset(*p + d->n[o->file], 0, end - d->n[o->file]);
        d->n[o->file] = end;
    }
    if (zeros) memset(*p + o->at + from, 0, to - from);
    else memcpy(*p + o->at + from, o->data + from, to - from);
}
/* The disk after a loss of power behind call 'at'. how: 0 nothing that was not synced is there, 1 all, 2 the directory only,
   3 the data only, else any combination. */
static void disk_make(disk *d, int at, int how, uint64_t *seed)
{
    int synced[FILES], synced_dir = -1;
    for (int i = 0; i < FILES; i++) synced[i] = -1;
    for (int i = 0; i < at; i++) {
        if (log_op[i].kind == OP_SYNC) synced[log_op[i].file] = i;
        if (log_op[i].kind == OP_SYNC_DIR) synced_dir = i;
    }
    memset(d, 0, sizeof *d);
    for (int i = 0; i < at; i++) {
        const op *o = &log_op[i];
        uint64_t  r = dt_test_random(seed);
        if (o->kind == OP_CREATE || o->kind == OP_RENAME || o->kind == OP_UNLINK) {
            if (i < synced_dir || how == 1 || how == 2 || (how > 3 && r % 2)) disk_dir(d, o);
        } else if (o->kind == OP_WRITE) {
            size_t cut = (size_t)(r >> 8) % (o->n + 1);
            if (i < synced[o->file] || how == 1 || how == 3 || (how > 3 && r % 5 == 0)) disk_write(d, o, 0, o->n, false);
            else if (how <= 3 || r % 5 == 1) continue;
            else if (r % 5 == 2) disk_write(d, o, 0, o->n, true);            /* the length is there, the data are not */
            else if (r % 5 == 3) disk_write(d, o, 0, cut - cut % SECTOR, false); /* the first sectors are */
            else disk_write(d, o, cut - cut % SECTOR, o->n, false);            /* the last ones are */
        }
    }
}
static void disk_put(const disk *d, const char *dir)
{
    DIR *all = opendir(dir);
    if (!all) abort();
    for (struct dirent *e; (e = readdir(all));)
        if (e->d_name[0] != '.' && unlink(temp_in(dir, e->d_name))) abort();
    closedir(all);
    for (int i = 0; i < d->nentries; i++) {
        int f = d->entry[i].file;
        if (files_write(temp_in(dir, d->entry[i].name), d->data[f] ? d->data[f] : "", d->n[f])) abort();
    }
}
static void no_log(void *user, int level, const char *text) { (void)user, (void)level, (void)text; }
UTEST(power, the_newest_intact_checkpoint_is_the_last_or_the_one_being_saved)
{
    char    *dir = temp_dir(), *whole[SAVES + 1] = { NULL }, where[] = "/dev/shm/dt_power.XXXXXX", buf[4400];
    size_t   nbytes[SAVES + 1] = { 0 };
    uint64_t seed = (uint64_t)dt_test_ns();
    int      states = 0, bad = 0, earlier = 0, later = 0, torn = 0;
    char    *disks = mkdtemp(where);
    record(dir, whole, nbytes);
    ASSERT_TRUE(nfiles <= FILES);
    if (!disks) UTEST_SKIP("no /dev/shm");
    printf("   seed %llu, %d calls\n", (unsigned long long)seed, nops);
    dt_set_log(no_log, NULL);
    int each = (dt_test_quick() ? 2500 : 24000) / nops + 5;
    for (int at = 0; at <= nops; at++) {
        int done = 0;
        for (int i = 0; i < at; i++)
            if (log_op[i].kind == OP_DONE) done = log_op[i].file;
        for (int how = 0; how < each; how++, states++) {
            disk   d;
            size_t n = 0;
            int    step = 0;
            disk_make(&d, at, how, &seed);
            disk_put(&d, disks);
            const char *latest = dt_checkpoint_latest(disks, NULL, buf, sizeof buf);
            if (latest) step = (int)atoll(strstr(latest, "ckpt-") + 5);
            else if (dt_error()) torn++; /* only damaged ones: allowed before the first save has returned */
            dt_error_clear();
            char *got = latest ? files_read(latest, &n) : NULL;
            bool  good = step >= done && step <= done + 1 && step <= SAVES &&
                        (step == 0 || (got && n == nbytes[step] && memcmp(got, whole[step], n) == 0));
            if (!good && bad++ < 5) printf("   call %d, how %d: step %d, %d had been saved\n", at, how, step, done);
            earlier += good && step == done;
            later += good && step == done + 1;
            free(got);
            for (int i = 0; i < FILES; i++) free(d.data[i]);
        }
    }
    dt_set_log(NULL, NULL);
    EXPECT_EQ(0, bad);
    EXPECT_GE(states, dt_test_quick() ? 2500 : 20000);
    EXPECT_GT(earlier, 0);
    EXPECT_GT(later, 0); /* a rename that was not synced was there */
    printf("   %d states: %d at the last save, %d at the one under way, %d with nothing but torn files\n",
           states, earlier, later, torn);
    for (int i = 0; i <= SAVES; i++) free(whole[i]);
    for (int i = 0; i < nops; i++) free(log_op[i].data);
    temp_remove(strdup(disks));
    temp_remove(dir);
}
