/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Random ioctls on all nodes and on files that the kernel makes, with arguments anywhere: in good memory, at its very end,
 * in memory that is read-only or not there. Argument: the number of calls. Every call must come back; whatever it
 * returns is fine. */
#include <linux/dma-heap.h>

#include "rknpu.h"

static uint64_t state = 1;

static uint64_t number(void)
{
    /* splitmix64 */
    uint64_t x = state += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

enum { PAGE = 4096 };

int main(int argc, char **argv)
{
    long calls = argc > 1 ? atol(argv[1]) : 1000, good = 0, faults = 0;
    /* Two good pages, one that is read-only, one that is not there. */
    char *memory = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    CHECK(mprotect(memory + 2 * PAGE, PAGE, PROT_READ) == 0 && mprotect(memory + 3 * PAGE, PAGE, PROT_NONE) == 0);
    const char *nodes[] = {"/dev/dri/card1", "/dev/dri/renderD129", "/dev/accel/accel0", "/dev/dma_heap/system"};
    int fds[6], count = 0;
    for (int i = 0; i < 4; i++) {
        int fd = open(nodes[i], O_RDWR | O_CLOEXEC);
        if (fd < 0)
            continue;
        fds[count++] = fd;
        struct dma_heap_allocation_data heap = {.len = PAGE, .fd_flags = O_RDWR | O_CLOEXEC};
        if (i == 3 && ioctl(fd, DMA_HEAP_IOCTL_ALLOC, &heap) == 0)
            fds[count++] = (int)heap.fd;
    }
    CHECK(count >= 3);
    static const unsigned char types[] = {'d', 'd', 'd', 'd', 'b', 'H', '>', 'r'};
    static const unsigned short sizes[] = {0, 4, 8, 12, 16, 24, 32, 40, 48, 64, 104, 300, 16383};
    for (long i = 0; i < calls; i++) {
        uint64_t bits = number();
        unsigned which = (unsigned)(bits & 7);
        unsigned nr = which < 5 ? 0x40 + (bits >> 8) % 6 : which < 7 ? (bits >> 8) % 0x30 : (bits >> 8) % 256;
        unsigned size = sizes[(bits >> 16) % (sizeof sizes / sizeof *sizes)];
        unsigned request = (unsigned)(bits >> 30 & 3) << 30 | size << 16 | types[bits >> 24 & 7] << 8 | nr;
        char *argument = memory + (bits >> 40) % (2 * PAGE);
        switch (bits >> 60) {
        case 0: argument = NULL; break;
        case 1: argument = (char *)8; break;
        case 2: argument = memory + 3 * PAGE + (bits >> 40) % PAGE; break;
        case 3: argument = memory + 2 * PAGE + (bits >> 40) % PAGE; break;
        case 4: argument = memory + 2 * PAGE - size; break;
        case 5: argument = (char *)(UINT64_C(0xFFFF800000000000) | bits); break;
        default: break;
        }
        for (unsigned at = 0; at < 128; at += 8) {
            uint64_t value = number();
            uint64_t choice[] = {0, value & 7, value >> 40, value, 0xFFFFF000, 0x100000000, 4096, (uintptr_t)memory};
            memcpy(memory + (bits >> 40) % (2 * PAGE - 128) + at, &choice[value >> 61], 8);
        }
        int fd = fds[(bits >> 12) % (unsigned)count];
        int status = ioctl(fd, request, argument);
        good += status == 0;
        faults += status != 0 && errno == EFAULT;
    }
    /* The board still works. */
    if (strstr(argc > 2 ? argv[2] : "", "rknpu")) {
        int fd = open_card();
        struct action reset = {.flags = ACT_RESET};
        CHECK(ioctl(fd, ACTION, &reset) == 0);
        struct product p = prepare(fd, 1);
        struct submit submit;
        CHECK(run(fd, &p, 0, &submit) == 0 && wrong_results(p.result.cpu, 1) == 0);
    }
    CHECK(good > calls / 50 && faults > calls / 50);
    printf("random calls came back\n");
    return 0;
}
