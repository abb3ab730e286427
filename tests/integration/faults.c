/* Faults for one process, preloaded into it: a wall clock that is wrong, and a disk that is slow or fails.
 *
 * The test writes what it wants into the file named by FAULTS_FILE, of which both sides hold the same page, so a
 * change takes effect at the next call. Monotonic and boot time are never touched.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000LL
#define WALL_SECONDS_MIN 1000000000 /* an absolute time beyond this is one of the wall clock */

struct faults {
    int64_t wall_offset_ns; /* added to the wall clock */
    int64_t sync_delay_us;  /* how long a sync of the log takes at least */
    int64_t sync_fails;     /* 1: the next sync of the log loses what was written last and fails */
    int64_t syncs;          /* counted here: syncs of the log */
    int64_t syncs_failed;   /* counted here: those that failed */
    int64_t writes_failing; /* counted here: writes to the log after a failed sync */
    int64_t syncs_waiting;  /* 1 while a sync of the log is being delayed */
    int64_t syncs_passing;  /* so many syncs of the log, counted from its start, are not delayed */
};

static struct faults none;
static volatile struct faults *faults = &none;

static struct {
    int fd;
    off_t offset;
    size_t length;
} last_write = {-1, 0, 0};

__attribute__((constructor)) static void open_faults(void) {
    const char *path = getenv("FAULTS_FILE");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *page = mmap(NULL, sizeof none, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (page != MAP_FAILED)
        faults = page;
}

/* ---- the wall clock ---- */

static void shift(struct timespec *time, int64_t offset_ns) {
    int64_t ns = (int64_t)time->tv_sec * NS + time->tv_nsec + offset_ns;
    time->tv_sec = ns / NS;
    time->tv_nsec = ns % NS;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        shift(now, faults->wall_offset_ns);
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec time;
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &time);
    now->tv_sec = time.tv_sec;
    now->tv_usec = time.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *seconds) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (seconds)
        *seconds = now.tv_sec;
    return now.tv_sec;
}

/* The kernel counts these waits with its own wall clock, so what was reckoned with ours is put back. */

static struct timespec kernel_time(const struct timespec *until) {
    struct timespec time = *until;
    if (time.tv_sec > WALL_SECONDS_MIN)
        shift(&time, -faults->wall_offset_ns);
    return time;
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!real)
        real = (int (*)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *))
            dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real)
        real = (int (*)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *))
            dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec time = kernel_time(until);
    return real(cond, mutex, &time);
}

int sem_timedwait(sem_t *restrict sem, const struct timespec *restrict until) {
    static int (*real)(sem_t *, const struct timespec *);
    if (!real)
        real = (int (*)(sem_t *, const struct timespec *))dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec time = kernel_time(until);
    return real(sem, &time);
}

/* ---- the disk: only files in a directory named log, so that the state database is left alone ---- */

static int is_log(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return strstr(path, "/log/") != NULL;
}

static ssize_t write_at(int fd, const struct iovec *buffers, int count, off_t offset, int flags) {
    ssize_t written = syscall(SYS_pwritev2, fd, buffers, (long)count, (long)offset, 0L, (long)flags);
    if (written > 0 && is_log(fd)) {
        last_write.fd = fd;
        last_write.offset = offset;
        last_write.length = (size_t)written;
        if (faults->syncs_failed)
            faults->writes_failing++;
    }
    return written;
}

ssize_t pwritev2(int fd, const struct iovec *buffers, int count, off_t offset, int flags) {
    return write_at(fd, buffers, count, offset, flags);
}

ssize_t pwritev64v2(int fd, const struct iovec *buffers, int count, off64_t offset, int flags) {
    return write_at(fd, buffers, count, offset, flags);
}

ssize_t pwritev(int fd, const struct iovec *buffers, int count, off_t offset) {
    return write_at(fd, buffers, count, offset, 0);
}

ssize_t pwritev64(int fd, const struct iovec *buffers, int count, off64_t offset) {
    return write_at(fd, buffers, count, offset, 0);
}

/* What a kernel may do when a write-back fails: the pages are dropped and the disk keeps what it had, zeros. */
static void lose_last_write(int fd) {
    static const char zeros[4096];
    off_t offset = last_write.offset, end = offset + (off_t)last_write.length;
    if (last_write.fd != fd)
        return;
    while (offset < end) {
        size_t length = (size_t)(end - offset) < sizeof zeros ? (size_t)(end - offset) : sizeof zeros;
        ssize_t written = syscall(SYS_pwrite64, fd, zeros, length, offset);
        if (written <= 0)
            return;
        offset += written;
    }
}

int fdatasync(int fd) {
    if (is_log(fd)) {
        faults->syncs++;
        if (faults->sync_delay_us && faults->syncs > faults->syncs_passing) {
            faults->syncs_waiting = 1;
            for (int64_t waited_us = 0; waited_us < faults->sync_delay_us; waited_us += 1000)
                usleep(1000); /* in small steps, so that the test can end it */
            faults->syncs_waiting = 0;
        }
        if (faults->sync_fails) {
            faults->sync_fails = 0;
            faults->syncs_failed++;
            lose_last_write(fd);
            errno = EIO;
            return -1;
        }
    }
    return (int)syscall(SYS_fdatasync, fd);
}
