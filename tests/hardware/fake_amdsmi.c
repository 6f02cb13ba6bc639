/* amdsmi's names for tests of detection by the real Python package, which wants every symbol of the library: those not
   here are generated as stubs by the test. FAKE_AMDSMI_NAMES: market names with '|' between; FAKE_AMDSMI_INIT: return
   code of the initialisation. Layouts are those of amdsmi.h: fixed strings of 256 bytes. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 2 };

static int socket_handle, devices[64];

static const char *names(void) {
    const char *text = getenv("FAKE_AMDSMI_NAMES");
    return text ? text : "";
}

static uint32_t count(void) {
    uint32_t out = *names() ? 1 : 0;
    for (const char *at = names(); *at; at++) out += *at == '|';
    return out;
}

int amdsmi_init(uint64_t flags) {
    (void)flags;
    printf("a driver that talks on standard output\n");
    return getenv("FAKE_AMDSMI_INIT") ? atoi(getenv("FAKE_AMDSMI_INIT")) : SUCCESS;
}

int amdsmi_shut_down(void) { return SUCCESS; }

int amdsmi_get_socket_handles(uint32_t *sockets, void **handles) {
    *sockets = 1;
    if (handles) handles[0] = &socket_handle;
    return SUCCESS;
}

int amdsmi_get_processor_handles(void *socket, uint32_t *processors, void **handles) {
    (void)socket;
    *processors = count();
    for (uint32_t index = 0; handles && index < count(); index++) {
        devices[index] = (int)index;
        handles[index] = &devices[index];
    }
    return SUCCESS;
}

int amdsmi_get_gpu_driver_info(void *device, char *info) {
    (void)device;
    snprintf(info, 256, "6.14.14");
    return SUCCESS;
}

int amdsmi_get_gpu_memory_total(void *device, int type, uint64_t *total) {
    (void)device, (void)type;
    if (getenv("FAKE_AMDSMI_NO_MEMORY")) return NOT_SUPPORTED;
    *total = 206141652992ULL;
    return SUCCESS;
}

int amdsmi_get_gpu_asic_info(void *device, char *info) {
    const char *at = names();
    for (int skip = *(int *)device; skip > 0; skip--) at = strchr(at, '|') + 1;
    snprintf(info, 256, "%.*s", (int)strcspn(at, "|"), at);
    return SUCCESS;
}
