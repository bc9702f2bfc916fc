/* Adds to the wall clock the microseconds that stand first in the file CLOCK_OFFSET. What follows them
   becomes 1 when a program has loaded this. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    /* It reads clocks without a call into the kernel. */
    real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("CLOCK_OFFSET");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *page = file < 0 ? MAP_FAILED : mmap(NULL, 16, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) {
        offset = page;
        offset[1] = 1;
    }
    if (file >= 0) close(file);
}

static int right(clockid_t clock, struct timespec *result) {
    return real ? real(clock, result) : (int)syscall(SYS_clock_gettime, clock, result);
}

static int64_t now(void) {
    struct timespec time;
    right(CLOCK_REALTIME, &time);
    int64_t us = (int64_t)time.tv_sec * 1000000 + time.tv_nsec / 1000;
    return us + (offset ? *offset : 0);
}

int gettimeofday(struct timeval *time, void *zone) {
    (void)zone;
    int64_t us = now();
    time->tv_sec = us / 1000000;
    time->tv_usec = us % 1000000;
    return 0;
}

time_t time(time_t *result) {
    time_t seconds = now() / 1000000;
    if (result) *result = seconds;
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *result) {
    if (clock != CLOCK_REALTIME) return right(clock, result);
    int64_t us = now();
    result->tv_sec = us / 1000000;
    result->tv_nsec = us % 1000000 * 1000;
    return 0;
}
