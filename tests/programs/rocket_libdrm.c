/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* An int8 product on the mainline driver through libdrm. Prints what it found; exits with 0 when all was right. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <xf86drm.h>

#include "matmul.h"

struct create_bo { uint32_t size, handle; uint64_t dma_address, offset; };
struct prep_bo { uint32_t handle, reserved; int64_t timeout_ns; };
struct fini_bo { uint32_t handle, reserved; };
struct rocket_task { uint32_t regcmd, regcmd_count; };
struct rocket_job {
    uint64_t tasks, in_bo_handles, out_bo_handles;
    uint32_t task_count, task_struct_size, in_bo_handle_count, out_bo_handle_count;
};
struct rocket_submit { uint64_t jobs; uint32_t job_count, job_struct_size; uint64_t reserved; };

#define CREATE_BO DRM_IOWR(0x40, struct create_bo)
#define SUBMIT DRM_IOW(0x41, struct rocket_submit)
#define PREP_BO DRM_IOW(0x42, struct prep_bo)
#define FINI_BO DRM_IOW(0x43, struct fini_bo)

#define CHECK(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, strerror(errno)); \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

struct bo { struct create_bo made; void *cpu; };

static struct bo make_bo(int fd, uint32_t size)
{
    struct bo bo = {.made = {.size = size}};
    CHECK(drmIoctl(fd, CREATE_BO, &bo.made) == 0);
    bo.cpu = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)bo.made.offset);
    CHECK(bo.cpu != MAP_FAILED);
    return bo;
}

static void cpu_is_done(int fd, const struct bo *bo)
{
    struct fini_bo fini = {.handle = bo->made.handle};
    CHECK(drmIoctl(fd, FINI_BO, &fini) == 0);
}

static int64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static int find_rocket(void)
{
    for (int i = 0; i < 64; i++) {
        char path[32];
        snprintf(path, sizeof path, "/dev/accel/accel%d", i);
        int fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd < 0)
            continue;
        drmVersionPtr version = drmGetVersion(fd);
        int found = version && strcmp(version->name, "rocket") == 0;
        if (found)
            printf("%s: %s %d.%d.%d\n", path, version->name, version->version_major, version->version_minor,
                   version->version_patchlevel);
        drmFreeVersion(version);
        if (found)
            return fd;
        close(fd);
    }
    return -1;
}

int main(void)
{
    int fd = find_rocket();
    CHECK(fd >= 0);
    struct bo features = make_bo(fd, M * K), weights = make_bo(fd, K * N);
    struct bo result = make_bo(fd, M * N * sizeof(int32_t)), program = make_bo(fd, PROGRAM_WORDS * sizeof(uint64_t));
    printf("first address %#llx\n", (unsigned long long)features.made.dma_address);
    fill_features(features.cpu, 4);
    fill_weights(weights.cpu, 4);
    unsigned words = write_program(program.cpu, (uint32_t)features.made.dma_address,
                                   (uint32_t)weights.made.dma_address, (uint32_t)result.made.dma_address);
    cpu_is_done(fd, &features);
    cpu_is_done(fd, &weights);
    cpu_is_done(fd, &program);

    struct rocket_task task = {(uint32_t)program.made.dma_address, words};
    uint32_t in[] = {features.made.handle}, out[] = {result.made.handle};
    struct rocket_job job = {
        .tasks = (uintptr_t)&task, .in_bo_handles = (uintptr_t)in, .out_bo_handles = (uintptr_t)out,
        .task_count = 1, .task_struct_size = sizeof task, .in_bo_handle_count = 1, .out_bo_handle_count = 1,
    };
    struct rocket_submit submit = {.jobs = (uintptr_t)&job, .job_count = 1, .job_struct_size = sizeof job};
    CHECK(drmIoctl(fd, SUBMIT, &submit) == 0);
    struct prep_bo prep = {.handle = result.made.handle, .timeout_ns = monotonic_ns() + INT64_C(6000000000)};
    CHECK(drmIoctl(fd, PREP_BO, &prep) == 0);
    unsigned wrong = wrong_results(result.cpu, 4);

    /* Only shared mappings are possible, of a whole buffer's start, in files that have the buffer. */
    CHECK(mmap(NULL, 64, PROT_READ, MAP_PRIVATE, fd, (off_t)result.made.offset) == MAP_FAILED && errno == EINVAL);
    int other = open("/dev/accel/accel0", O_RDWR | O_CLOEXEC);
    CHECK(mmap(NULL, 64, PROT_READ, MAP_SHARED, other, (off_t)result.made.offset) == MAP_FAILED && errno == EACCES);
    CHECK(close(other) == 0 && close(other) == -1 && errno == EBADF);

    /* A job without tasks vanishes, and the call succeeds. */
    job.task_count = 0;
    CHECK(drmIoctl(fd, SUBMIT, &submit) == 0);
    submit.reserved = 1;
    CHECK(drmIoctl(fd, SUBMIT, &submit) == -1 && errno == EINVAL);
    struct prep_bo unknown = {.handle = 99};
    CHECK(drmIoctl(fd, PREP_BO, &unknown) == -1 && errno == ENOENT);

    struct bo *all[] = {&features, &weights, &result, &program};
    for (unsigned i = 0; i < 4; i++) {
        struct drm_gem_close gone = {.handle = all[i]->made.handle};
        CHECK(munmap(all[i]->cpu, all[i]->made.size) == 0);
        CHECK(drmIoctl(fd, DRM_IOCTL_GEM_CLOSE, &gone) == 0);
    }
    CHECK(drmClose(fd) == 0);
    printf("matmul %dx%dx%d: %u of %d wrong\n", M, K, N, wrong, M * N);
    return wrong != 0;
}
