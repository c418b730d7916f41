/* A wall clock for drills, preloaded into processes of one run: CLOCK_REALTIME is as far ahead as the file says that
 * $PLAYED_CLOCK names, eight bytes with nanoseconds, which is mapped and may change at any time. CLOCK_MONOTONIC and
 * CLOCK_BOOTTIME are the kernel's.
 * An absolute wait until a moment of this clock becomes one until the same moment of the kernel's: Python before 3.12
 * waits for its locks like that, and a wait for a tenth of a second would last as long as the clock is ahead. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
typedef struct timespec spec;
static volatile int64_t *ahead;

__attribute__((constructor)) static void map(void) {
    const char *path = getenv("PLAYED_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *found = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (found != MAP_FAILED) ahead = found;
}
static int64_t ahead_ns(void) { return ahead ? *ahead : 0; }
static spec moved(spec at, int64_t by_ns) {
    int64_t ns = at.tv_nsec + by_ns % SECOND;
    at.tv_sec += by_ns / SECOND + (ns >= SECOND) - (ns < 0);
    at.tv_nsec = ns - SECOND * (ns >= SECOND) + SECOND * (ns < 0);
    return at;
}
/* Of a condition variable the older of two versions is never meant: it belongs to programs from before 2003. */
static void *next(const char *name) {
    void *found = dlvsym(RTLD_NEXT, name, "GLIBC_2.3.2");
    return found ? found : dlsym(RTLD_NEXT, name);
}
#define REAL(name) static __typeof__(&name) real; if (!real) real = next(#name)

/* ---- what time is it ---- */

static int is_wall(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI; }

int clock_gettime(clockid_t clock, spec *out) {
    REAL(clock_gettime);
    int failed = real ? real(clock, out) : (int)syscall(SYS_clock_gettime, clock, out);
    if (!failed && is_wall(clock)) *out = moved(*out, ahead_ns());
    return failed;
}
int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    spec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *out) {
    spec now;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
int timespec_get(spec *out, int base) { return base == TIME_UTC && !clock_gettime(CLOCK_REALTIME, out) ? base : 0; }

/* ---- waits until a moment ---- */

static spec of_kernel(clockid_t clock, const spec *until) {
    return is_wall(clock) && until->tv_nsec >= 0 && until->tv_nsec < SECOND ? moved(*until, -ahead_ns()) : *until;
}
int sem_timedwait(sem_t *restrict sem, const spec *restrict until) {
    REAL(sem_timedwait);
    spec at = of_kernel(CLOCK_REALTIME, until);
    return real(sem, &at);
}
int sem_clockwait(sem_t *restrict sem, clockid_t clock, const spec *restrict until) {
    REAL(sem_clockwait);
    spec at = of_kernel(clock, until);
    return real(sem, clock, &at);
}
/* Which clock a condition variable has is not told here. The time since the machine started is decades from the date,
 * so what is nearer to the date is one. */
int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex, const spec *restrict until) {
    REAL(pthread_cond_timedwait);
    spec wall, steady;
    clock_gettime(CLOCK_REALTIME, &wall);
    clock_gettime(CLOCK_MONOTONIC, &steady);
    spec at = of_kernel(until->tv_sec > steady.tv_sec + (wall.tv_sec - steady.tv_sec) / 2 ? CLOCK_REALTIME : CLOCK_MONOTONIC, until);
    return real(cond, mutex, &at);
}
int pthread_cond_clockwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex, clockid_t clock, const spec *restrict until) {
    REAL(pthread_cond_clockwait);
    spec at = of_kernel(clock, until);
    return real(cond, mutex, clock, &at);
}
int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const spec *restrict until) {
    REAL(pthread_mutex_timedlock);
    spec at = of_kernel(CLOCK_REALTIME, until);
    return real(mutex, &at);
}
int clock_nanosleep(clockid_t clock, int flags, const spec *wanted, spec *rest) {
    REAL(clock_nanosleep);
    spec at = flags & TIMER_ABSTIME ? of_kernel(clock, wanted) : *wanted;
    return real(clock, flags, &at, rest);
}
