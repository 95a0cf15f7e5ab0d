/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* An int8 product on the vendor driver with plain ioctls; the argument chooses how.
 * Prints what it found; exits with 0 when everything was as expected. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/wait.h>

#include "rknpu.h"

static unsigned product_on(int fd, unsigned core, unsigned seed)
{
    struct product p = prepare(fd, seed);
    struct submit submit;
    CHECK(run(fd, &p, core, &submit) == 0);
    CHECK(submit.task_counter == 1);
    unsigned wrong = wrong_results(p.result.cpu, seed);
    drop_product(fd, &p);
    return wrong;
}

static int once(int fd)
{
    unsigned wrong = product_on(fd, 0, 1);
    printf("matmul %dx%dx%d: %u of %d wrong\n", M, K, N, wrong, M * N);
    return wrong != 0;
}

/* The ioctl of headers older than 0.9.6, and memory that needs no cache maintenance. */
static int old_header(int fd)
{
    struct mem_create_old made = {.flags = 0, .size = 440};
    CHECK(ioctl(fd, MEM_CREATE_OLD, &made) == 0);
    CHECK(made.handle == 1 && made.size == 4096 && made.obj_addr != 0 && made.dma_addr != 0);
    struct mem_map map = {.handle = made.handle};
    CHECK(ioctl(fd, MEM_MAP, &map) == 0 && map.offset == 0x100000000);
    void *cpu = mmap(NULL, 440, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)map.offset);
    CHECK(cpu != MAP_FAILED);
    memset(cpu, 7, 440);
    CHECK(munmap(cpu, 440) == 0);
    struct action reset = {.flags = ACT_RESET};
    CHECK(ioctl(fd, ACTION, &reset) == 0);
    /* As a caller sees it whose request is an int with the top bit set. */
    struct action version = {.flags = GET_HW_VERSION, .value = ~0u};
    CHECK(ioctl(fd, (unsigned long)(long)(int)ACTION, &version) == 0);
    printf("hardware version %#x\n", version.value);
    /* Errors are -1 and errno. */
    struct action set_freq = {.flags = 3};
    CHECK(ioctl(fd, ACTION, &set_freq) == -1 && errno == EINVAL);
    CHECK(ioctl(fd, ACTION, NULL) == -1 && errno == EFAULT);
    CHECK(ioctl(fd, TIOCNOTTY) == -1);
    return 0;
}

static int wrong_program(int fd)
{
    struct product p = prepare(fd, 1);
    struct submit submit;
    /* Half a pair of interrupt bits: the driver never sees the job as done. */
    ((struct task *)p.tasks.cpu)->int_mask = 0x100;
    CHECK(run(fd, &p, 0, &submit) == -1);
    printf("half an interrupt pair: %s, %u done\n", strerrorname_np(errno), submit.task_counter);
    /* The program is never started. */
    ((struct task *)p.tasks.cpu)->int_mask = 0x300;
    ((uint64_t *)p.program.cpu)[PROGRAM_WORDS - 1] = 0;
    sync_buffer(fd, &p.program, TO_DEVICE);
    CHECK(run(fd, &p, 0, &submit) == -1);
    printf("no enable word: %s, %u done\n", strerrorname_np(errno), submit.task_counter);
    return 0;
}

struct worker { int fd; unsigned core, wrong; };

static void *work(void *argument)
{
    struct worker *w = argument;
    for (unsigned round = 0; round < 20; round++)
        w->wrong += product_on(w->fd, w->core, 3 * round + w->core);
    return NULL;
}

static int threads(int fd)
{
    pthread_t ids[3];
    struct worker workers[3];
    unsigned wrong = 0;
    for (unsigned core = 0; core < 3; core++) {
        workers[core] = (struct worker){fd, core, 0};
        CHECK(pthread_create(&ids[core], NULL, work, &workers[core]) == 0);
    }
    for (unsigned core = 0; core < 3; core++) {
        CHECK(pthread_join(ids[core], NULL) == 0);
        wrong += workers[core].wrong;
    }
    printf("3 threads on 3 cores: %u wrong\n", wrong);
    return wrong != 0;
}

enum { INHERITED_FAILS = 1, OPEN_FAILS = 2, WRONG = 4 };

/* Of a child: uses the file that it has inherited, and opens the device anew, like its own child at the same time. */
static int use_device(int inherited, int generations)
{
    struct action version = {.flags = GET_DRV_VERSION};
    int says = ioctl(inherited, ACTION, &version) == 0 ? 0 : INHERITED_FAILS;
    int own = open("/dev/dri/card1", O_RDWR);
    if (own < 0)
        return says | OPEN_FAILS;
    struct worker worker = {own, 2, 0};
    pthread_t id;
    CHECK(pthread_create(&id, NULL, work, &worker) == 0);
    pid_t child = generations > 0 ? fork() : -1;
    if (child == 0)
        _exit(use_device(own, generations - 1));
    unsigned wrong = product_on(own, 0, 6);
    CHECK(pthread_join(id, NULL) == 0);
    int status = 0;
    CHECK(child < 0 || (waitpid(child, &status, 0) == child && WIFEXITED(status)));
    CHECK(close(own) == 0);
    return wrong || worker.wrong ? WRONG : says | WEXITSTATUS(status);
}

/* Forks while another thread submits. The child keeps its mappings; whether it can use the file that it has inherited,
 * and open the device anew, is printed. */
static int forks(int fd)
{
    struct worker worker = {fd, 1, 0};
    pthread_t id;
    struct product shared = prepare(fd, 5);
    struct submit submit;
    int child_says = 0;
    CHECK(run(fd, &shared, 0, &submit) == 0);
    CHECK(pthread_create(&id, NULL, work, &worker) == 0);
    for (int i = 0; i < 4; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            int says = use_device(fd, i % 2);
            unsigned wrong = wrong_results(shared.result.cpu, 5);
            ((int8_t *)shared.features.cpu)[i] = (int8_t)(100 + i);
            CHECK(munmap(shared.weights.cpu, shared.weights.len) == 0);
            close(fd);
            _exit(wrong ? WRONG : says);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) < WRONG);
        child_says = WEXITSTATUS(status);
        /* Memory is shared, as a device's is. */
        CHECK(((int8_t *)shared.features.cpu)[i] == 100 + i);
    }
    CHECK(pthread_join(id, NULL) == 0);
    unsigned wrong = worker.wrong + product_on(fd, 2, 7);
    drop_product(fd, &shared);
    printf("4 forks beside a busy thread: %u wrong, inherited file %s, opened anew %s\n", wrong,
           child_says & INHERITED_FAILS ? "fails" : "works", child_says & OPEN_FAILS ? "fails" : "works");
    return wrong != 0;
}

/* Children that open the device themselves, of a parent that has not. */
static int fork_first(int fd)
{
    CHECK(close(fd) == 0);
    pid_t children[3];
    for (unsigned i = 0; i < 3; i++) {
        children[i] = fork();
        CHECK(children[i] >= 0);
        if (children[i] == 0) {
            int own = open_card();
            unsigned wrong = product_on(own, i, 10 + i);
            close(own);
            exit(wrong != 0);
        }
    }
    for (unsigned i = 0; i < 3; i++) {
        int status;
        CHECK(waitpid(children[i], &status, 0) == children[i]);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    printf("3 children\n");
    return 0;
}

/* A descriptor's copies are one open file; the last close ends it. */
static int duplicates(int fd)
{
    struct product p = prepare(fd, 2);
    struct submit submit;
    int copies[] = {dup(fd), fcntl(fd, F_DUPFD_CLOEXEC, 100), dup2(fd, 200), dup3(fd, 201, O_CLOEXEC)};
    CHECK(close(fd) == 0);
    struct action version = {.flags = GET_DRV_VERSION};
    CHECK(ioctl(fd, ACTION, &version) == -1 && errno == EBADF);
    for (int i = 0; i < 4; i++) {
        CHECK(run(copies[i], &p, 0, &submit) == 0);
        if (i < 3)
            CHECK(close(copies[i]) == 0);
    }
    CHECK(close(copies[2]) == -1 && errno == EBADF);
    /* Another open file knows none of these handles. */
    int other = open_card();
    struct mem_map map = {.handle = p.result.made.handle};
    CHECK(ioctl(other, MEM_MAP, &map) == -1 && errno == ENOENT);
    /* An ordinary file takes the place of a descriptor. */
    int null = open("/dev/null", O_RDWR);
    CHECK(dup2(null, other) == other);
    CHECK(ioctl(other, ACTION, &version) == -1 && errno == ENOTTY);
    unsigned wrong = wrong_results(p.result.cpu, 2);
    printf("4 copies of a descriptor: %u wrong\n", wrong);
    return wrong != 0;
}

/* Mappings outlive the file, and what it owned goes with them. */
static int map_after_close(int fd)
{
    struct product p = prepare(fd, 9);
    struct submit submit;
    CHECK(run(fd, &p, 0, &submit) == 0);
    CHECK(close(fd) == 0);
    unsigned wrong = wrong_results(p.result.cpu, 9);
    memset(p.features.cpu, 1, M * K);
    CHECK(munmap(p.result.cpu, p.result.len) == 0);
    /* The first file still owns its addresses through its mappings; a new one gets others. */
    fd = open_card();
    struct buffer buffer = make_buffer(fd, 4096, DATA);
    CHECK(buffer.made.handle == 1);
    CHECK(buffer.made.dma_addr != p.features.made.dma_addr);
    printf("mapped after close: %u wrong\n", wrong);
    return wrong != 0;
}

/* A second mapping at a chosen place, and half of it unmapped. */
static int fixed_mappings(int fd)
{
    struct buffer buffer = make_buffer(fd, 4 * 4096, DATA);
    char *place = mmap(NULL, 8 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(place != MAP_FAILED);
    char *second = mmap(place + 4096, buffer.len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
                        (off_t)buffer.offset);
    CHECK(second == place + 4096);
    ((char *)buffer.cpu)[3 * 4096] = 42;
    CHECK(second[3 * 4096] == 42);
    CHECK(munmap(second, 4096) == 0);
    second[3 * 4096 + 1] = 43;
    CHECK(((char *)buffer.cpu)[3 * 4096 + 1] == 43);
    CHECK(mmap(NULL, 8 * 4096, PROT_READ, MAP_SHARED, fd, (off_t)buffer.offset) == MAP_FAILED && errno == EINVAL);
    CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 4096) == MAP_FAILED && errno == EINVAL);
    CHECK(munmap(place, 8 * 4096) == 0);
    drop_buffer(fd, &buffer);
    printf("mappings at chosen places\n");
    return 0;
}

int main(int argc, char **argv)
{
    static const struct { const char *name; int (*run)(int fd); } ways[] = {
        {"once", once},           {"old-header", old_header}, {"wrong-program", wrong_program},
        {"threads", threads},     {"fork", forks},            {"duplicates", duplicates},
        {"after-close", map_after_close}, {"fixed", fixed_mappings},  {"fork-first", fork_first},
    };
    const char *wanted = argc > 1 ? argv[1] : "once";
    for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++)
        if (strcmp(ways[i].name, wanted) == 0)
            return ways[i].run(ways[i].run == fork_first ? dup(0) : open_card());
    fprintf(stderr, "unknown way: %s\n", wanted);
    return 2;
}
