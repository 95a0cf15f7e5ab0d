/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Looks for an NPU the way programs do, through every call that shows paths, and prints what is there. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static void list(const char *path)
{
    struct dirent **entries;
    int count = scandir(path, &entries, NULL, alphasort);
    printf("%s:", path);
    for (int i = 0; i < count; i++) {
        if (entries[i]->d_name[0] != '.')
            printf(" %s%s", entries[i]->d_name, entries[i]->d_type == DT_CHR ? "(c)" : "");
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
    printf("\n");
    /* The other way to read a folder. */
    unsigned again = 0;
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        again++;
    if (folder)
        closedir(folder);
    if (count >= 0 && again != (unsigned)count)
        printf("readdir sees %u instead of %d\n", again, count);
}

static void describe(const char *path)
{
    struct stat st;
    struct statx stx;
    if (stat(path, &st) != 0) {
        printf("%s: %s\n", path, strerrorname_np(errno));
        return;
    }
    printf("%s: %s %u:%u", path, S_ISCHR(st.st_mode) ? "char" : S_ISDIR(st.st_mode) ? "folder" : "other",
           major(st.st_rdev), minor(st.st_rdev));
    if (statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, &stx) != 0 || stx.stx_mode != st.st_mode ||
        stx.stx_rdev_major != major(st.st_rdev) || stx.stx_rdev_minor != minor(st.st_rdev))
        printf(", statx disagrees");
    if (access(path, R_OK | W_OK) != 0)
        printf(", no access");
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0) {
        if (fstat(fd, &st) != 0 || !S_ISCHR(st.st_mode))
            printf(", fstat disagrees");
        close(fd);
        int direct = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
        unsigned version[2] = {1, 0};
        if (syscall(SYS_ioctl, direct, 0xC0086440, version) == 0)
            printf(", version %u", version[1]);
        close(direct);
    }
    printf("\n");
}

static void contents(const char *path)
{
    char text[256];
    FILE *file = fopen(path, "r");
    if (!file) {
        printf("%s: %s\n", path, strerrorname_np(errno));
        return;
    }
    size_t len = fread(text, 1, sizeof text, file);
    fclose(file);
    printf("%s: ", path);
    for (size_t i = 0; i < len; i++)
        putchar(text[i] == 0 || text[i] == '\n' ? '|' : text[i]);
    printf("\n");
}

int main(void)
{
    list("/dev/dri");
    list("/dev/accel");
    list("/dev/dma_heap");
    const char *nodes[] = {"/dev/dri/card0",     "/dev/dri/card1",        "/dev/dri/renderD128", "/dev/dri/renderD129",
                           "/dev/accel/accel0",  "/dev/rknpu",            "/dev/rga",
                           "/dev/dri/../dri//./card1"};
    for (unsigned i = 0; i < sizeof nodes / sizeof *nodes; i++)
        describe(nodes[i]);

    glob_t found;
    const char *patterns[] = {"/dev/dri/card*", "/dev/accel/accel[0-9]", "/sys/class/devfreq/*.npu/cur_freq"};
    for (unsigned i = 0; i < 3; i++)
        if (glob(patterns[i], 0, NULL, &found) == 0) {
            for (size_t j = 0; j < found.gl_pathc; j++)
                printf("glob %s\n", found.gl_pathv[j]);
            globfree(&found);
        }

    contents("/proc/device-tree/compatible");
    contents("/sys/firmware/devicetree/base/model");
    contents("/sys/kernel/debug/rknpu/version");
    contents("/sys/kernel/debug/rknpu/load");
    contents("/sys/class/drm/card1/device/uevent");
    contents("/sys/class/accel/accel0/dev");

    char text[PATH_MAX];
    ssize_t len = readlink("/sys/class/drm/card1/device/subsystem", text, sizeof text - 1);
    if (len > 0) {
        text[len] = 0;
        printf("subsystem %s\n", strrchr(text, '/') + 1);
    }
    if (realpath("/dev/dri/../dri/card1", text))
        printf("realpath %s\n", text);
    int folder = open("/dev/dri", O_RDONLY | O_DIRECTORY);
    if (folder >= 0) {
        int fd = openat(folder, "renderD129", O_RDWR);
        struct stat st;
        if (fd >= 0 && fstat(fd, &st) == 0)
            printf("openat %u:%u\n", major(st.st_rdev), minor(st.st_rdev));
        if (fstatat(folder, "card1", &st, 0) == 0)
            printf("fstatat %u:%u\n", major(st.st_rdev), minor(st.st_rdev));
    }
    return 0;
}
