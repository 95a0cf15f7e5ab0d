/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Host time per call, in nanoseconds: how much the way to the device costs when the device has nothing to do.
 * Argument: rknpu (default) or rocket. */
#include <time.h>

#include "rknpu.h"

#define ROCKET_SUBMIT 0x40186441ul

enum { ROUNDS = 20000 };

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

/* The fastest of five runs: the machine does other things too. */
static void measure(const char *name, int fd, unsigned long request, const void *argument, size_t len, int expected)
{
    double best = 1e18;
    for (int run = 0; run < 5; run++) {
        double start = now_ns();
        for (int i = 0; i < ROUNDS; i++) {
            char copy[256];
            memcpy(copy, argument, len);
            int status = ioctl(fd, request, copy) == 0 ? 0 : errno;
            CHECK(status == expected);
        }
        double each = (now_ns() - start) / ROUNDS;
        best = each < best ? each : best;
    }
    printf("%-28s %8.0f ns\n", name, best);
}

int main(int argc, char **argv)
{
    int null = open("/dev/null", O_RDWR);
    struct action version = {.flags = GET_DRV_VERSION};
    measure("ioctl on another file", null, ACTION, &version, sizeof version, ENOTTY);
    if (argc > 1 && strcmp(argv[1], "rocket") == 0) {
        int fd = open("/dev/accel/accel0", O_RDWR);
        CHECK(fd >= 0);
        uint64_t empty[3] = {0, (uint64_t)40 << 32, 0};
        measure("submit of no jobs", fd, ROCKET_SUBMIT, empty, sizeof empty, 0);
        return 0;
    }
    int fd = open_card();
    measure("version query", fd, ACTION, &version, sizeof version, 0);
    struct submit none = {.flags = 1, .fence_fd = -1};
    measure("submit of no tasks", fd, SUBMIT, &none, sizeof none, EINVAL);
    struct product p = prepare(fd, 1);
    struct submit one;
    double best = 1e18;
    for (int i = 0; i < 200; i++) {
        double start = now_ns();
        CHECK(run(fd, &p, 0, &one) == 0);
        double each = now_ns() - start;
        best = each < best ? each : best;
    }
    printf("%-28s %8.0f ns, the simulation included\n", "submit of one 4x64x64 matmul", best);
    return 0;
}
