/* A library with NVML's names, for tests of detection by the real nvidia-ml-py. What the machine has comes from the
   environment: FAKE_NVML_NAMES (names with '|' between), FAKE_NVML_MIG (MIG devices on each, unset: no MIG mode),
   FAKE_NVML_INIT (return code of the initialisation), FAKE_NVML_HANG and FAKE_NVML_CRASH (in the initialisation). */

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

typedef struct { unsigned long long total, free, used; } Memory;

static int devices[64];

static const char *names(void) {
    const char *text = getenv("FAKE_NVML_NAMES");
    return text ? text : "";
}

static unsigned count(void) {
    unsigned out = *names() ? 1 : 0;
    for (const char *at = names(); *at; at++) out += *at == '|';
    return out;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (getenv("FAKE_NVML_HANG")) pause();
    if (getenv("FAKE_NVML_CRASH")) raise(SIGSEGV);
    printf("a driver that talks on standard output\n");
    fflush(stdout);
    const char *code = getenv("FAKE_NVML_INIT");
    return code ? atoi(code) : SUCCESS;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == 4 ? "Insufficient Permissions" : "Some Failure"; }

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    snprintf(version, length, "580.95.05");
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *out) {
    *out = count();
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index >= count()) return INVALID_ARGUMENT;
    devices[index] = (int)index;
    *device = &devices[index];
    return SUCCESS;
}

int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    const char *at = names();
    for (int skip = *(int *)device; skip > 0; skip--) at = strchr(at, '|') + 1;
    snprintf(name, length, "%.*s", (int)strcspn(at, "|"), at);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
    (void)device;
    *memory = (Memory){192265846784ULL, 192265846784ULL, 0};
    return SUCCESS;
}

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    (void)device;
    if (!getenv("FAKE_NVML_MIG")) return NOT_SUPPORTED;
    *current = *pending = atoi(getenv("FAKE_NVML_MIG")) > 0;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *out) {
    (void)device;
    *out = 7;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **part) {
    *part = device;
    return (int)index < atoi(getenv("FAKE_NVML_MIG")) ? SUCCESS : NOT_FOUND;
}
