/* The entry points of libnvidia-ml.so.1 that the collector calls, answered from a script (script.h).
 * A handle is 1 + the GPU's index, a MIG instance's 1000 * (1 + GPU) + 1 + instance. */
#include "script.h"

enum { NOT_SUPPORTED = 3, LOST = 15, NOT_FOUND = 6, INVALID = 2, SUCCESS = 0 };

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int gpu, memory; } utilization_t;
typedef struct {
    unsigned int field, scope;
    long long timestamp, latency;
    unsigned int type, code;
    union { double d; unsigned int ui; unsigned long long ull; } value;
} field_t;

static int key_of(void *handle, const char *name, char *key)
{
    long number = (long)handle;
    char text[SCRIPT_TEXT];
    if (number > 1000)
        snprintf(key, SCRIPT_TEXT, "%ld.mig.%ld.%s", number / 1000 - 1, number % 1000 - 1, name);
    else
        snprintf(key, SCRIPT_TEXT, "%ld.lost", number - 1);
    if (number <= 1000) {
        if (!script_text(key, text, NOT_SUPPORTED))
            return LOST;
        snprintf(key, SCRIPT_TEXT, "%ld.%s", number - 1, name);
    }
    return SUCCESS;
}

static int number_of(void *handle, const char *name, double *out)
{
    char key[SCRIPT_TEXT];
    int code = key_of(handle, name, key);
    return code ? code : script_number(key, out, NOT_SUPPORTED);
}

static int text_of(void *handle, const char *name, char *out, unsigned int size)
{
    char key[SCRIPT_TEXT], text[SCRIPT_TEXT];
    int code = key_of(handle, name, key);
    if (!code)
        code = script_text(key, text, NOT_SUPPORTED);
    if (!code)
        snprintf(out, size, "%s", text);
    return code;
}

int nvmlInitWithFlags(unsigned int flags)
{
    double code = 0;
    (void)flags;
    return script_number("init", &code, SUCCESS);
}

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code)
{
    static char text[32];
    snprintf(text, sizeof text, "code %d", code);
    return text;
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
    double number = 0;
    int code = script_number("count", &number, NOT_SUPPORTED);
    *count = (unsigned int)number;
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle)
{
    char key[SCRIPT_TEXT], text[SCRIPT_TEXT];
    snprintf(key, sizeof key, "%u.handle", index);
    *handle = (void *)(long)(index + 1);
    return script_text(key, text, SUCCESS);
}

int nvmlDeviceGetUUID(void *h, char *out, unsigned int size) { return text_of(h, "uuid", out, size); }
int nvmlDeviceGetName(void *h, char *out, unsigned int size) { return text_of(h, "name", out, size); }

int nvmlDeviceGetArchitecture(void *h, unsigned int *out)
{
    double number = 0;
    int code = number_of(h, "architecture", &number);
    *out = (unsigned int)number;
    return code;
}

int nvmlDeviceGetTotalEnergyConsumption(void *h, unsigned long long *millijoules)
{
    double microjoules = 0;
    int code = number_of(h, "energy_uj", &microjoules);
    *millijoules = (unsigned long long)(microjoules / 1000);
    return code;
}

int nvmlDeviceGetPowerUsage(void *h, unsigned int *milliwatts)
{
    double number = 0;
    int code = number_of(h, "usage_mw", &number);
    *milliwatts = (unsigned int)number;
    return code;
}

int nvmlDeviceGetFieldValues(void *h, int count, field_t *fields)
{
    double number = 0;
    int code = number_of(h, "fields", &number); /* an error here is the driver that has no such call */
    if (code && code != NOT_SUPPORTED)
        return code;
    for (int i = 0; i < count; i++) {
        number = 0;
        fields[i].code = number_of(h, fields[i].field == 185 ? "average_mw" : "instant_mw", &number);
        fields[i].type = 1;
        fields[i].value.ui = (unsigned int)number;
    }
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *h, utilization_t *out)
{
    double number = 0;
    int code = number_of(h, "utilisation", &number);
    out->gpu = (unsigned int)number;
    out->memory = 0;
    return code;
}

int nvmlDeviceGetMemoryInfo(void *h, memory_t *out)
{
    double number = 0;
    int code = number_of(h, "memory", &number);
    out->used = (unsigned long long)number;
    out->total = 2 * out->used;
    out->free = out->used;
    return code;
}

int nvmlDeviceGetMigMode(void *h, unsigned int *current, unsigned int *pending)
{
    double number = 0;
    int code = number_of(h, "mig", &number);
    *current = *pending = number > 0;
    return code;
}

int nvmlDeviceGetMaxMigDeviceCount(void *h, unsigned int *count)
{
    (void)h;
    *count = 7;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *h, unsigned int index, void **handle)
{
    double number = 0;
    int code = number_of(h, "mig", &number);
    *handle = (void *)(1000 * (long)h + 1 + index);
    return code ? code : index < number ? SUCCESS : NOT_FOUND;
}
