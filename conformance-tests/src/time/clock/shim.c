/* Adds to the wall clock the microseconds that stand in the file CLOCK_OFFSET. */
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

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CLOCK_OFFSET");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *page = file < 0 ? MAP_FAILED : mmap(NULL, 8, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) offset = page;
    if (file >= 0) close(file);
}

static int64_t now(void) {
    struct timespec real;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &real);
    int64_t us = (int64_t)real.tv_sec * 1000000 + real.tv_nsec / 1000;
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
    if (clock != CLOCK_REALTIME) return syscall(SYS_clock_gettime, clock, result);
    int64_t us = now();
    result->tv_sec = us / 1000000;
    result->tv_nsec = us % 1000000 * 1000;
    return 0;
}
