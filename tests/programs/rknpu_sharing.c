/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What several files, devices and processes share of the vendor driver: dma-bufs, fences, caches, descriptors over exec.
 * The argument chooses; what was found is printed; the exit code is 0 when everything was as expected. */
#define _GNU_SOURCE
#include <linux/dma-buf.h>
#include <linux/dma-heap.h>
#include <linux/sync_file.h>
#include <poll.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/wait.h>

#include <drm.h>

#include "rknpu.h"

extern char **environ;

enum { PAGE = 4096, NONBLOCK = 2, FENCE_IN = 8, FENCE_OUT = 16 };

static int export_handle(int fd, uint32_t handle, uint32_t flags)
{
    struct drm_prime_handle prime = {.handle = handle, .flags = flags};
    return ioctl(fd, DRM_IOCTL_PRIME_HANDLE_TO_FD, &prime) == 0 ? prime.fd : -1;
}

/* Gives a handle, or 0 with errno. */
static uint32_t import_fd(int fd, int dma_buf)
{
    struct drm_prime_handle prime = {.fd = dma_buf};
    return ioctl(fd, DRM_IOCTL_PRIME_FD_TO_HANDLE, &prime) == 0 ? prime.handle : 0;
}

static int bracket(int dma_buf, uint64_t flags)
{
    struct dma_buf_sync sync = {.flags = flags};
    return ioctl(dma_buf, DMA_BUF_IOCTL_SYNC, &sync);
}

/* The buffer behind a dma-buf: imported, asked for its address, mapped by its own descriptor. */
static struct buffer imported(int fd, int dma_buf, size_t len)
{
    struct buffer b = {.made = {.handle = import_fd(fd, dma_buf)}, .len = len};
    CHECK(b.made.handle != 0);
    CHECK(ioctl(fd, MEM_CREATE, &b.made) == 0 && b.made.dma_addr != 0);
    b.cpu = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, dma_buf, 0);
    CHECK(b.cpu != MAP_FAILED);
    return b;
}

static int is_cloexec(int fd)
{
    int flags = fcntl(fd, F_GETFD);
    CHECK(flags >= 0);
    return flags & FD_CLOEXEC;
}

/* A buffer of one file is the operand of a job of another one. */
static int prime(int fd)
{
    int other = open("/dev/dri/renderD129", O_RDWR | O_CLOEXEC);
    CHECK(other >= 0);
    struct buffer lent = make_buffer(fd, M * K, DATA);
    int dma_buf = export_handle(fd, lent.made.handle, DRM_CLOEXEC | DRM_RDWR);
    int second = export_handle(fd, lent.made.handle, 0);
    CHECK(dma_buf >= 0 && second >= 0 && dma_buf != second);
    CHECK(is_cloexec(dma_buf) && !is_cloexec(second));
    CHECK(lseek(dma_buf, 0, SEEK_END) == PAGE);
    struct pollfd idle = {.fd = dma_buf, .events = POLLIN | POLLOUT};
    CHECK(poll(&idle, 1, 0) == 1 && idle.revents == (POLLIN | POLLOUT));
    CHECK(import_fd(fd, second) == lent.made.handle);

    struct product p = make_product(other, 4);
    drop_buffer(other, &p.features);
    p.features = imported(other, dma_buf, M * K);
    CHECK(p.features.made.dma_addr == lent.made.dma_addr && p.features.made.size == PAGE);
    CHECK(import_fd(other, second) == p.features.made.handle);
    CHECK(bracket(dma_buf, DMA_BUF_SYNC_START | DMA_BUF_SYNC_WRITE) == 0);
    fill_product(&p);
    CHECK(bracket(dma_buf, DMA_BUF_SYNC_END | DMA_BUF_SYNC_WRITE) == 0);
    sync_buffer(other, &p.weights, TO_DEVICE);
    sync_buffer(other, &p.program, TO_DEVICE);
    CHECK(memcmp(lent.cpu, p.features.cpu, M * K) == 0);

    CHECK(export_handle(fd, lent.made.handle, 1) == -1 && errno == EINVAL);
    CHECK(export_handle(fd, 99, 0) == -1 && errno == ENOENT);
    CHECK(import_fd(fd, 0) == 0 && errno == EINVAL);
    CHECK(import_fd(fd, 999) == 0 && errno == EBADF);
    CHECK(bracket(dma_buf, 8) == -1 && errno == EINVAL);
    /* The lender goes; the buffer stays for those who still have it. */
    drop_buffer(fd, &lent);
    CHECK(close(fd) == 0 && close(dma_buf) == 0 && close(second) == 0);
    struct submit submit;
    CHECK(run(other, &p, 1, &submit) == 0);
    unsigned wrong = wrong_results(p.result.cpu, 4);
    drop_product(other, &p);
    printf("a lent operand: %u wrong\n", wrong);
    return wrong != 0;
}

static struct buffer heap_buffer(int fd, int heap, size_t len, int *dma_buf)
{
    struct dma_heap_allocation_data data = {.len = len, .fd_flags = O_RDWR | O_CLOEXEC};
    CHECK(ioctl(heap, DMA_HEAP_IOCTL_ALLOC, &data) == 0);
    *dma_buf = (int)data.fd;
    return imported(fd, *dma_buf, len);
}

/* Operands and result come from the heap, as with allocators that know nothing of the NPU. The second of two products
 * forgets to end its write access: on a machine with caches it is the first one again. */
static int heap(int fd)
{
    int heap = open("/dev/dma_heap/system", O_RDONLY | O_CLOEXEC);
    CHECK(heap >= 0);
    struct product p = make_product(fd, 5);
    struct buffer *buffers[] = {&p.features, &p.weights, &p.result};
    int dma_bufs[3];
    for (int i = 0; i < 3; i++) {
        size_t len = buffers[i]->len;
        drop_buffer(fd, buffers[i]);
        *buffers[i] = heap_buffer(fd, heap, len, &dma_bufs[i]);
        CHECK(import_fd(fd, dma_bufs[i]) == buffers[i]->made.handle);
        CHECK(bracket(dma_bufs[i], DMA_BUF_SYNC_START | DMA_BUF_SYNC_RW) == 0);
    }
    fill_product(&p);
    for (int i = 0; i < 3; i++)
        CHECK(bracket(dma_bufs[i], DMA_BUF_SYNC_END | DMA_BUF_SYNC_RW) == 0);
    sync_buffer(fd, &p.program, TO_DEVICE);

    struct mem_map map = {.handle = p.features.made.handle};
    CHECK(ioctl(fd, MEM_MAP, &map) == -1 && errno == EINVAL);
    struct mem_sync sync = {.flags = TO_DEVICE, .obj_addr = p.features.made.obj_addr, .size = 64};
    CHECK(ioctl(fd, MEM_SYNC, &sync) == -1 && errno == EINVAL);
    struct dma_heap_allocation_data none = {.len = 0, .fd_flags = O_RDWR};
    CHECK(ioctl(heap, DMA_HEAP_IOCTL_ALLOC, &none) == -1 && errno == EINVAL);
    CHECK(ioctl(heap, TIOCNOTTY) == -1 && errno == ENOTTY);

    unsigned wrong[2];
    for (unsigned round = 0; round < 2; round++) {
        struct submit submit = request(&p, 0);
        CHECK(ioctl(fd, SUBMIT, &submit) == 0 && submit.task_counter == 1);
        CHECK(bracket(dma_bufs[2], DMA_BUF_SYNC_START | DMA_BUF_SYNC_READ) == 0);
        wrong[round] = wrong_results(p.result.cpu, p.seed);
        CHECK(bracket(dma_bufs[2], DMA_BUF_SYNC_END | DMA_BUF_SYNC_READ) == 0);
        p.seed = 6;
        fill_features(p.features.cpu, p.seed);
        fill_weights(p.weights.cpu, p.seed);
    }
    printf("operands of the heap: %u wrong, then %s\n", wrong[0],
           wrong[1] == 0 ? "right" : wrong_results(p.result.cpu, 5) == 0 ? "the old result" : "wrong");
    /* An import ends by either call. */
    struct mem_destroy destroy = {.handle = p.features.made.handle};
    struct drm_gem_close gone = {.handle = p.weights.made.handle};
    CHECK(ioctl(fd, MEM_DESTROY, &destroy) == 0 && ioctl(fd, DRM_IOCTL_GEM_CLOSE, &gone) == 0);
    CHECK(((int8_t *)p.features.cpu)[1] == feature(6, 0, 1));
    for (int i = 0; i < 3; i++)
        CHECK(munmap(buffers[i]->cpu, buffers[i]->len) == 0 && close(dma_bufs[i]) == 0);
    return 0;
}

static int is_signalled(int fence, int timeout_ms)
{
    struct pollfd wait = {.fd = fence, .events = POLLIN};
    int ready = poll(&wait, 1, timeout_ms);
    CHECK(ready >= 0);
    return ready == 1 && wait.revents == POLLIN;
}

/* Submits without waiting; the fence of the job. */
static int start(int fd, const struct product *p, unsigned core)
{
    struct submit submit = request(p, core);
    submit.flags |= NONBLOCK | FENCE_OUT;
    CHECK(ioctl(fd, SUBMIT, &submit) == 0);
    CHECK(submit.fence_fd >= 0 && is_cloexec(submit.fence_fd) && submit.task_counter == 0);
    return submit.fence_fd;
}

static int fences(int fd)
{
    enum { LONG_MS = 100000 };
    struct product p[2] = {prepare(fd, 7), prepare(fd, 8)};
    int fence[2];
    for (unsigned i = 0; i < 2; i++)
        fence[i] = start(fd, &p[i], i);
    struct sync_merge_data merge = {.name = "both", .fd2 = fence[1]};
    CHECK(ioctl(fence[0], SYNC_IOC_MERGE, &merge) == 0 && is_cloexec(merge.fence));
    CHECK(is_signalled(merge.fence, LONG_MS));
    CHECK(is_signalled(fence[0], 0) && is_signalled(fence[1], 0));
    unsigned wrong = 0;
    for (unsigned i = 0; i < 2; i++) {
        sync_buffer(fd, &p[i].result, FROM_DEVICE);
        wrong += wrong_results(p[i].result.cpu, p[i].seed);
    }

    struct sync_fence_info entry = {.status = -1};
    struct sync_file_info info = {.num_fences = 0};
    CHECK(ioctl(fence[0], SYNC_IOC_FILE_INFO, &info) == 0 && info.num_fences == 1 && info.status == 1);
    info.sync_fence_info = (uintptr_t)&entry;
    CHECK(ioctl(fence[0], SYNC_IOC_FILE_INFO, &info) == 0);
    CHECK(entry.status == 1 && entry.timestamp_ns != 0 && strcmp(entry.driver_name, "rknpu") == 0);
    merge.fd2 = fd;
    CHECK(ioctl(fence[0], SYNC_IOC_MERGE, &merge) == -1 && errno == ENOENT);

    /* A job that waits for a fence first. */
    int dma_buf = export_handle(fd, p[0].result.made.handle, DRM_CLOEXEC);
    struct dma_buf_export_sync_file idle = {.flags = DMA_BUF_SYNC_READ};
    CHECK(ioctl(dma_buf, DMA_BUF_IOCTL_EXPORT_SYNC_FILE, &idle) == 0 && is_signalled(idle.fd, 0));
    struct dma_buf_import_sync_file put = {.flags = DMA_BUF_SYNC_WRITE, .fd = fence[1]};
    CHECK(ioctl(dma_buf, DMA_BUF_IOCTL_IMPORT_SYNC_FILE, &put) == 0);
    int before[] = {idle.fd, start(fd, &p[0], 2)};
    for (int i = 0; i < 2; i++) {
        struct submit submit = request(&p[1], 2);
        submit.flags |= FENCE_IN;
        submit.fence_fd = before[i];
        CHECK(ioctl(fd, SUBMIT, &submit) == 0 && submit.fence_fd == -1 && submit.task_counter == 1);
        submit.flags |= FENCE_IN;
        submit.fence_fd = i == 0 ? fd : -1;
        CHECK(ioctl(fd, SUBMIT, &submit) == -1 && errno == EINVAL);
    }
    /* Jobs of a core end in their order. */
    CHECK(is_signalled(before[1], 0));
    CHECK(close(fence[0]) == 0 && fcntl(fence[0], F_GETFD) == -1);
    printf("fences: %u wrong\n", wrong);
    return wrong != 0;
}

static const char *seen(const struct product *p)
{
    static const char zeros[M * N * sizeof(int32_t)];
    if (memcmp(p->result.cpu, zeros, sizeof zeros) == 0)
        return "nothing";
    return wrong_results(p->result.cpu, p->seed) == 0 ? "right" : "wrong";
}

/* One call of cache maintenance after the other is left out. */
static int forgotten(int fd)
{
    struct product p = make_product(fd, 9);
    struct submit submit = request(&p, 0);
    fill_product(&p);
    sync_buffer(fd, &p.features, TO_DEVICE);
    sync_buffer(fd, &p.weights, TO_DEVICE);
    int status = ioctl(fd, SUBMIT, &submit);
    printf("program not flushed: %s\n", status == 0 ? "runs" : strerrorname_np(errno));
    sync_buffer(fd, &p.program, TO_DEVICE);

    memset(p.result.cpu, 0, p.result.len);
    sync_buffer(fd, &p.result, TO_DEVICE);
    CHECK(ioctl(fd, SUBMIT, &submit) == 0);
    printf("result not invalidated: %s", seen(&p));
    sync_buffer(fd, &p.result, FROM_DEVICE);
    printf(", then %s\n", seen(&p));

    p.seed = 10;
    fill_features(p.features.cpu, p.seed);
    fill_weights(p.weights.cpu, p.seed);
    sync_buffer(fd, &p.weights, TO_DEVICE);
    CHECK(run(fd, &p, 0, &submit) == 0);
    printf("features not flushed: %s", seen(&p));
    sync_buffer(fd, &p.features, TO_DEVICE);
    CHECK(run(fd, &p, 0, &submit) == 0);
    printf(", then %s\n", seen(&p));
    return 0;
}

/* In the program that exec starts: what became of the descriptors of the one before. */
static int after_exec(char **fds)
{
    int closed = atoi(fds[0]), device = atoi(fds[1]), dma_buf = atoi(fds[2]);
    CHECK(fcntl(closed, F_GETFD) == -1 && errno == EBADF);
    CHECK(fcntl(device, F_GETFD) == 0 && fcntl(dma_buf, F_GETFD) == 0);
    struct action version = {.flags = GET_DRV_VERSION};
    CHECK(ioctl(device, ACTION, &version) == -1);
    printf("after exec: device %s", strerrorname_np(errno));
    CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, device, 0x100000000) == MAP_FAILED && errno == ENODEV);
    CHECK(bracket(dma_buf, DMA_BUF_SYNC_READ) == -1);
    printf(", dma-buf %s", strerrorname_np(errno));
    int own = open_card();
    struct product p = prepare(own, 11);
    CHECK(p.features.made.handle == 1);
    struct submit submit;
    CHECK(run(own, &p, 0, &submit) == 0);
    unsigned wrong = wrong_results(p.result.cpu, 11);
    printf(", opened anew %u wrong\n", wrong);
    return wrong != 0;
}

static int exec_self(int fd)
{
    int closed = open("/dev/dri/renderD129", O_RDWR | O_CLOEXEC);
    struct product p = prepare(fd, 12);
    char fds[3][12];
    int all[] = {closed, fd, export_handle(fd, p.features.made.handle, 0)};
    for (int i = 0; i < 3; i++)
        snprintf(fds[i], sizeof fds[i], "%d", all[i]);
    char *arguments[] = {"rknpu_sharing", "after-exec", fds[0], fds[1], fds[2], NULL};
    pid_t child;
    CHECK(posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ) == 0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    /* The board of this process has noticed nothing. */
    struct submit submit;
    CHECK(run(fd, &p, 0, &submit) == 0 && wrong_results(p.result.cpu, 12) == 0);
    execve("/proc/self/exe", arguments, environ);
    return 1;
}

/* Two processes at the same time. Each has a board of its own, so their addresses are the same and their bytes are not;
 * a lock on the device is one for both. */
static int processes(int fd)
{
    CHECK(close(fd) == 0);
    /* The children of a process that has seen a device see the same one. */
    CHECK(access("/dev/dri/card1", R_OK | W_OK) == 0);
    int to_child[2], to_parent[2];
    uint64_t address;
    CHECK(pipe(to_child) == 0 && pipe(to_parent) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    unsigned seed = child == 0 ? 13 : 14;
    int in = child == 0 ? to_child[0] : to_parent[0], out = child == 0 ? to_parent[1] : to_child[1];
    int own = open_card();
    struct product p = prepare(own, seed);
    /* Both have their buffers before either computes. */
    CHECK(write(out, &p.result.made.dma_addr, sizeof address) == sizeof address);
    CHECK(read(in, &address, sizeof address) == sizeof address);
    CHECK(address == p.result.made.dma_addr);
    unsigned wrong = 0;
    struct submit submit;
    for (int round = 0; round < 50; round++) {
        memset(p.result.cpu, 0x55, p.result.len);
        sync_buffer(own, &p.result, TO_DEVICE);
        CHECK(run(own, &p, (unsigned)round % 3, &submit) == 0);
        wrong += wrong_results(p.result.cpu, seed);
    }
    if (child != 0)
        CHECK(flock(own, LOCK_EX) == 0);
    CHECK(write(out, "x", 1) == 1 && read(in, &address, 1) == 1);
    if (child == 0) {
        CHECK(flock(own, LOCK_EX | LOCK_NB) == -1 && errno == EWOULDBLOCK);
        exit(wrong != 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    printf("two processes: %u wrong\n", wrong);
    return wrong != 0;
}

int main(int argc, char **argv)
{
    static const struct { const char *name; int (*run)(int fd); } ways[] = {
        {"prime", prime},         {"heap", heap},      {"fences", fences},
        {"forgotten", forgotten}, {"exec", exec_self}, {"processes", processes},
    };
    if (argc == 5 && strcmp(argv[1], "after-exec") == 0)
        return after_exec(argv + 2);
    for (unsigned i = 0; argc == 2 && i < sizeof ways / sizeof *ways; i++)
        if (strcmp(ways[i].name, argv[1]) == 0)
            return ways[i].run(ways[i].run == processes ? dup(0) : open_card());
    fprintf(stderr, "unknown way\n");
    return 2;
}
