/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The vendor kernel interface as far as these programs use it, and one product through it. */
#ifndef RKNPU_H
#define RKNPU_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "matmul.h"

struct action { uint32_t flags, value; };
/* As in headers older than 0.9.6, without domain and core mask. */
struct mem_create_old { uint32_t handle, flags; uint64_t size, obj_addr, dma_addr, sram_size; };
struct mem_create {
    uint32_t handle, flags;
    uint64_t size, obj_addr, dma_addr, sram_size;
    int32_t domain;
    uint32_t core_mask;
};
struct mem_map { uint32_t handle, reserved; uint64_t offset; };
struct mem_destroy { uint32_t handle, reserved; uint64_t obj_addr; };
struct mem_sync { uint32_t flags, reserved; uint64_t obj_addr, offset, size; };
struct task {
    uint32_t flags, op_idx, enable_mask, int_mask, int_clear, int_status, regcfg_amount, regcfg_offset;
    uint64_t regcmd_addr;
};
struct subcore { uint32_t start, number; };
struct submit {
    uint32_t flags, timeout, task_start, task_number, task_counter;
    int32_t priority;
    uint64_t task_obj_addr;
    uint32_t domain, reserved;
    uint64_t task_base_addr;
    int64_t elapsed_ns;
    uint32_t core_mask;
    int32_t fence_fd;
    struct subcore subcore[5];
};

#define ACTION _IOWR('d', 0x40, struct action)
#define SUBMIT _IOWR('d', 0x41, struct submit)
#define MEM_CREATE_OLD _IOWR('d', 0x42, struct mem_create_old)
#define MEM_CREATE _IOWR('d', 0x42, struct mem_create)
#define MEM_MAP _IOWR('d', 0x43, struct mem_map)
#define MEM_DESTROY _IOWR('d', 0x44, struct mem_destroy)
#define MEM_SYNC _IOWR('d', 0x45, struct mem_sync)

enum { GET_HW_VERSION = 0, GET_DRV_VERSION = 1, ACT_RESET = 6 };
enum { DATA = 0x403, TASKS = 0x40B, TO_DEVICE = 1, FROM_DEVICE = 2 };

#define CHECK(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, strerror(errno)); \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

struct buffer {
    struct mem_create made;
    uint64_t offset;
    void *cpu;
    size_t len;
};

static inline struct buffer make_buffer(int fd, size_t len, uint32_t flags)
{
    struct buffer b = {.made = {.flags = flags, .size = len}, .len = len};
    CHECK(ioctl(fd, MEM_CREATE, &b.made) == 0);
    struct mem_map map = {.handle = b.made.handle};
    CHECK(ioctl(fd, MEM_MAP, &map) == 0);
    b.offset = map.offset;
    b.cpu = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)map.offset);
    CHECK(b.cpu != MAP_FAILED);
    return b;
}

static inline void sync_buffer(int fd, const struct buffer *b, uint32_t direction)
{
    struct mem_sync sync = {.flags = direction, .obj_addr = b->made.obj_addr, .size = b->len};
    CHECK(ioctl(fd, MEM_SYNC, &sync) == 0);
}

static inline void drop_buffer(int fd, struct buffer *b)
{
    CHECK(munmap(b->cpu, b->len) == 0);
    struct mem_destroy destroy = {.handle = b->made.handle};
    CHECK(ioctl(fd, MEM_DESTROY, &destroy) == 0);
}

struct product {
    struct buffer features, weights, result, program, tasks;
    unsigned seed;
};

/* Writes the operands, the program and the task of a product into its buffers, as far as the CPU's caches. */
static inline void fill_product(struct product *p)
{
    fill_features(p->features.cpu, p->seed);
    fill_weights(p->weights.cpu, p->seed);
    unsigned words = write_program(p->program.cpu, (uint32_t)p->features.made.dma_addr,
                                   (uint32_t)p->weights.made.dma_addr, (uint32_t)p->result.made.dma_addr);
    *(struct task *)p->tasks.cpu = (struct task){
        .enable_mask = 0xD,
        .int_mask = 0x300,
        .int_clear = 0x1FFFF,
        .regcfg_amount = words - TRAILER_WORDS,
        .regcmd_addr = p->program.made.dma_addr,
    };
}

static inline struct product make_product(int fd, unsigned seed)
{
    return (struct product){
        .features = make_buffer(fd, M * K, DATA),
        .weights = make_buffer(fd, K * N, DATA),
        .result = make_buffer(fd, M * N * sizeof(int32_t), DATA),
        .program = make_buffer(fd, PROGRAM_WORDS * sizeof(uint64_t), DATA),
        .tasks = make_buffer(fd, sizeof(struct task), TASKS),
        .seed = seed,
    };
}

/* Allocates and fills everything that one product needs. */
static inline struct product prepare(int fd, unsigned seed)
{
    struct product p = make_product(fd, seed);
    fill_product(&p);
    sync_buffer(fd, &p.features, TO_DEVICE);
    sync_buffer(fd, &p.weights, TO_DEVICE);
    sync_buffer(fd, &p.program, TO_DEVICE);
    return p;
}

/* A submit on one core that waits. */
static inline struct submit request(const struct product *p, unsigned core)
{
    struct submit submit = {
        .flags = 5,
        .timeout = 6000,
        .task_number = 1,
        .task_obj_addr = p->tasks.made.obj_addr,
        .core_mask = 1u << core,
        .fence_fd = -1,
    };
    submit.subcore[core].number = 1;
    return submit;
}

/* Submits on one core and waits. Returns 0, or -1 with errno. */
static inline int run(int fd, struct product *p, unsigned core, struct submit *submit)
{
    *submit = request(p, core);
    int status = ioctl(fd, SUBMIT, submit);
    int error = errno;
    sync_buffer(fd, &p->result, FROM_DEVICE);
    errno = error;
    return status;
}

static inline void drop_product(int fd, struct product *p)
{
    drop_buffer(fd, &p->features);
    drop_buffer(fd, &p->weights);
    drop_buffer(fd, &p->result);
    drop_buffer(fd, &p->program);
    drop_buffer(fd, &p->tasks);
}

static inline int open_card(void)
{
    int fd = open("/dev/dri/card1", O_RDWR);
    CHECK(fd >= 0);
    return fd;
}

#endif
