/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Finds the vendor driver as programs with libdrm do: by name, and by walking all devices. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xf86drm.h>

int main(void)
{
    int fd = drmOpen("rknpu", NULL);
    if (fd < 0) {
        fprintf(stderr, "drmOpen: not found\n");
        return 1;
    }
    drmVersionPtr version = drmGetVersion(fd);
    printf("%s %d.%d.%d %s \"%s\"\n", version->name, version->version_major, version->version_minor,
           version->version_patchlevel, version->date, version->desc);
    drmFreeVersion(version);
    printf("node type %d\n", drmGetNodeTypeFromFd(fd));
    char *name = drmGetDeviceNameFromFd2(fd);
    printf("device name %s\n", name ? name : "?");
    free(name);
    char *render = drmGetRenderDeviceNameFromFd(fd);
    printf("render node %s\n", render ? render : "?");
    free(render);
    uint64_t prime = 0;
    printf("prime %d", drmGetCap(fd, DRM_CAP_PRIME, &prime));
    printf(" %llu\n", (unsigned long long)prime);
    drmClose(fd);

    drmDevicePtr devices[8];
    int count = drmGetDevices2(0, devices, 8);
    printf("%d devices\n", count);
    for (int i = 0; i < count; i++) {
        if (devices[i]->bustype == DRM_BUS_PLATFORM)
            printf("platform %s, %s, nodes %#x\n", devices[i]->businfo.platform->fullname,
                   devices[i]->deviceinfo.platform->compatible[0], devices[i]->available_nodes);
    }
    if (count > 0)
        drmFreeDevices(devices, count);
    return 0;
}
