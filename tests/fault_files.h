/* fault_files.h: directories for tests that write files, and dt's table of file calls with faults.

       char *dir = temp_dir();  ...  temp_remove(dir);       a fresh directory; it and all in it goes
       fault_arm(kinds, n, FAULT_FAIL, ENOSPC);                the n-th call of these kinds (bits) from now fails
       fault_arm(kinds, n, FAULT_EXIT, 0);                     ... ends the process, before it is done
       fault_arm(kinds, n, FAULT_TORN, 0);                     ... ends the process; of a write, half is done before
       fault_disarm();                                         all calls work; fault.calls tells how many there were
       files_child(fn, arg)                                    what fn returned in a process of its own; FAULT_ENDED:
                                                               a fault ended it; -2: it ended otherwise
   FAULT_EVER is FAULT_FAIL for this call and all behind it. fault.short_writes: a write takes at most that many bytes;
   fault.interrupts: every other write is interrupted. Include after dt_io.h with DT_IO_IMPLEMENTATION. */
#ifndef FAULT_FILES_H
#define FAULT_FILES_H

#include "harness.h"
#include "temp_files.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    FAULT_OPEN = 1,
    FAULT_FLOCK = 2,
    FAULT_WRITE = 4,
    FAULT_PWRITE = 8,
    FAULT_FSYNC = 16,
    FAULT_CLOSE = 32,
    FAULT_RENAME = 64,
    FAULT_UNLINK = 128,
    FAULT_MKDIR = 256,
    FAULT_OPENDIR = 512,
    FAULT_READDIR = 1024,
    FAULT_CLOSEDIR = 2048,
    FAULT_ANY = 4095
};
enum { FAULT_FAIL = 1, FAULT_EVER, FAULT_EXIT, FAULT_TORN };

static struct {
    int     kinds, mode, error;
    int64_t at, calls; /* of these kinds */
    size_t  short_writes;
    int     interrupts;
    int64_t writes, fsyncs;
    int     failed_fd; /* whose fsync failed; -1 */
    int     retried;   /* that one was asked again */
} fault;
static struct dt__files fault_real;

static void fault_end(void) /* as by kill -9: nothing of the process runs any more */
{
    kill(getpid(), SIGKILL);
    for (;;) pause();
}
/* Does this call fail? */
static int fault_hit(int kind)
{
    if (!(fault.kinds & kind)) return 0;
    fault.calls++;
    if (fault.calls != fault.at && !(fault.mode == FAULT_EVER && fault.calls > fault.at)) return 0;
    if (fault.mode == FAULT_EXIT || (fault.mode == FAULT_TORN && !(kind & (FAULT_WRITE | FAULT_PWRITE)))) fault_end();
    errno = fault.error;
    return fault.mode != 0;
}
static int fault_open(const char *path, int flags, unsigned mode)
{
    return fault_hit(FAULT_OPEN) ? -1 : fault_real.open(path, flags, mode);
}
static int     fault_flock(int fd, int how) { return fault_hit(FAULT_FLOCK) ? -1 : fault_real.flock(fd, how); }
static ssize_t fault_write(int fd, const void *p, size_t n)
{
    int hit = fault_hit(FAULT_WRITE);
    if (hit && fault.mode == FAULT_TORN) {
        if (fault_real.write(fd, p, n / 2) >= 0) fault_end();
        abort();
    }
    if (hit) return -1;
    if (fault.interrupts && ++fault.writes % 2) return errno = EINTR, -1;
    return fault_real.write(fd, p, fault.short_writes && n > fault.short_writes ? fault.short_writes : n);
}
static ssize_t fault_pwrite(int fd, const void *p, size_t n, off_t at)
{
    int hit = fault_hit(FAULT_PWRITE);
    if (hit && fault.mode == FAULT_TORN) {
        if (fault_real.pwrite(fd, p, n / 2, at) >= 0) fault_end();
        abort();
    }
    if (hit) return -1;
    if (fault.interrupts && ++fault.writes % 2) return errno = EINTR, -1;
    return fault_real.pwrite(fd, p, fault.short_writes && n > fault.short_writes ? fault.short_writes : n, at);
}
static int fault_fsync(int fd)
{
    fault.fsyncs++;
    if (fd == fault.failed_fd) fault.retried = 1;
    if (!fault_hit(FAULT_FSYNC)) return fault_real.fsync(fd);
    fault.failed_fd = fd;
    return -1;
}
static int fault_close(int fd)
{
    if (fd == fault.failed_fd) fault.failed_fd = -1;
    int hit = fault_hit(FAULT_CLOSE), e = errno, rc = fault_real.close(fd); /* a close that fails closes */
    if (!hit) return rc;
    errno = e;
    return -1;
}
static int fault_rename(const char *a, const char *b) { return fault_hit(FAULT_RENAME) ? -1 : fault_real.rename(a, b); }
static int fault_unlink(const char *p) { return fault_hit(FAULT_UNLINK) ? -1 : fault_real.unlink(p); }
static int fault_mkdir(const char *p, mode_t m) { return fault_hit(FAULT_MKDIR) ? -1 : fault_real.mkdir(p, m); }
static DIR           *fault_opendir(const char *p) { return fault_hit(FAULT_OPENDIR) ? NULL : fault_real.opendir(p); }
static struct dirent *fault_readdir(DIR *d) { return fault_hit(FAULT_READDIR) ? NULL : fault_real.readdir(d); }
static int            fault_closedir(DIR *d)
{
    int hit = fault_hit(FAULT_CLOSEDIR), rc = fault_real.closedir(d);
    return hit ? -1 : rc;
}

static DT_TEST_UNUSED void fault_arm(int kinds, int64_t at, int mode, int error)
{
    if (!fault_real.open) fault_real = dt__fs;
    memset(&fault, 0, sizeof fault);
    fault.kinds = kinds;
    fault.at = at;
    fault.mode = mode;
    fault.error = error;
    fault.failed_fd = -1;
    dt__fs.open = fault_open;
    dt__fs.flock = fault_flock;
    dt__fs.write = fault_write;
    dt__fs.pwrite = fault_pwrite;
    dt__fs.fsync = fault_fsync;
    dt__fs.close = fault_close;
    dt__fs.rename = fault_rename;
    dt__fs.unlink = fault_unlink;
    dt__fs.mkdir = fault_mkdir;
    dt__fs.opendir = fault_opendir;
    dt__fs.readdir = fault_readdir;
    dt__fs.closedir = fault_closedir;
}
static DT_TEST_UNUSED void fault_disarm(void)
{
    if (fault_real.open) dt__fs = fault_real;
}

/* ---------------------------------------------------------------------------------------------- directories */
static DT_TEST_UNUSED int files_count(const char *dir) /* entries, or -1 */
{
    DIR *d = opendir(dir);
    int  n = 0;
    if (!d) return -1;
    for (struct dirent *e; (e = readdir(d));) n += strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
    closedir(d);
    return n;
}
static DT_TEST_UNUSED char *files_read(const char *path, size_t *nbytes) /* freed by the caller; NULL: cannot be read */
{
    FILE *f = fopen(path, "rb");
    char *p = NULL;
    *nbytes = 0;
    if (!f) return NULL;
    if (!fseek(f, 0, SEEK_END)) {
        long n = ftell(f);
        rewind(f);
        p = (char *)malloc((size_t)n + 1);
        if (p) *nbytes = fread(p, 1, (size_t)n, f);
    }
    fclose(f);
    return p;
}
static DT_TEST_UNUSED int files_write(const char *path, const void *data, size_t nbytes) /* 0 or -1 */
{
    FILE *f = fopen(path, "wb");
    if (!f) return -1;
    size_t n = fwrite(data, 1, nbytes, f);
    return fclose(f) || n != nbytes ? -1 : 0;
}

/* ---------------------------------------------------------------------------------------------- processes */
enum { FAULT_ENDED = -1 };
static DT_TEST_UNUSED int files_child(int (*fn)(void *arg), void *arg)
{
    int *result = (int *)mmap(NULL, sizeof *result, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int  status = 0, got;
    if (result == (int *)MAP_FAILED) return -2;
    *result = FAULT_ENDED;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        *result = fn(arg);
        fflush(NULL);
        fault_end(); /* instruments that look for leaks at an exit have nothing to say about a process of this kind */
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    got = pid > 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL ? *result : -2;
    munmap(result, sizeof *result);
    return got;
}

#endif /* FAULT_FILES_H */
