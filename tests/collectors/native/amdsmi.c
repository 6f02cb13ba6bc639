/* The entry points of libamd_smi.so that the collector calls, answered from a script (script.h). The binding looks up
 * every function of the library when it is imported; the test generates weak ones for all the others. */
#include "script.h"
#include <stdint.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 2 };

typedef struct {
    uint64_t socket_power;
    uint32_t current_socket_power, average_socket_power;
    uint64_t gfx_voltage, soc_voltage, mem_voltage;
    uint32_t power_limit;
    uint64_t reserved[18];
} power_t;
typedef struct { uint32_t gfx, umc, mm, reserved[13]; } activity_t;
typedef struct { uint32_t total, used, reserved[2]; } vram_t;
typedef struct {
    char market_name[256];
    uint32_t vendor_id;
    char vendor_name[256];
    uint32_t subvendor_id;
    uint64_t device_id;
    uint32_t rev_id;
    char asic_serial[256];
    uint32_t oam_id, compute_units;
    uint64_t target_graphics_version;
    uint32_t subsystem_id, reserved[21];
} asic_t;

static int number_of(void *handle, const char *name, double *out)
{
    char key[SCRIPT_TEXT], text[SCRIPT_TEXT];
    int lost;
    snprintf(key, sizeof key, "%ld.lost", (long)handle - 1);
    lost = script_text(key, text, SUCCESS);
    snprintf(key, sizeof key, "%ld.%s", (long)handle - 1, name);
    return lost ? lost : script_number(key, out, NOT_SUPPORTED);
}

int amdsmi_init(uint64_t flags)
{
    double code = 0;
    (void)flags;
    return script_number("init", &code, SUCCESS);
}

int amdsmi_shut_down(void) { return SUCCESS; }

int amdsmi_status_code_to_string(int code, const char **text)
{
    (void)code;
    *text = "an error";
    return SUCCESS;
}

int amdsmi_get_socket_handles(uint32_t *count, void **handles)
{
    *count = 1;
    if (handles)
        handles[0] = (void *)1;
    return SUCCESS;
}

int amdsmi_get_processor_handles(void *socket, uint32_t *count, void **handles)
{
    double number = 0;
    int code = script_number("count", &number, NOT_SUPPORTED);
    (void)socket;
    *count = (uint32_t)number;
    for (uint32_t i = 0; handles && i < *count; i++)
        handles[i] = (void *)(long)(i + 1);
    return code;
}

int amdsmi_get_gpu_device_bdf(void *h, uint64_t *bdf)
{
    double bus = 0, function = 0;
    int code = number_of(h, "bus", &bus);
    number_of(h, "function", &function);
    *bdf = (uint64_t)function | (uint64_t)bus << 8;
    return code;
}

int amdsmi_get_gpu_device_uuid(void *h, uint32_t *size, char *uuid)
{
    char key[SCRIPT_TEXT], text[SCRIPT_TEXT];
    int code;
    snprintf(key, sizeof key, "%ld.uuid", (long)h - 1);
    code = script_text(key, text, NOT_SUPPORTED);
    if (!code)
        snprintf(uuid, *size, "%s", text);
    return code;
}

int amdsmi_get_gpu_asic_info(void *h, asic_t *asic)
{
    memset(asic, 0, sizeof *asic);
    (void)h;
    snprintf(asic->market_name, sizeof asic->market_name, "AMD Instinct MI300X");
    snprintf(asic->asic_serial, sizeof asic->asic_serial, "1A2B");
    return SUCCESS;
}

int amdsmi_get_power_info(void *h, power_t *power)
{
    double socket = 0, current = 0, average = 0;
    int code = number_of(h, "socket", &socket);
    if (number_of(h, "current", &current))
        current = UINT32_MAX; /* how the library says: not on this chip */
    if (number_of(h, "average", &average))
        average = 0xFFFF; /* and how some releases say it */
    memset(power, 0, sizeof *power);
    power->socket_power = code ? UINT32_MAX : (uint64_t)socket;
    power->current_socket_power = (uint32_t)current;
    power->average_socket_power = (uint32_t)average;
    return code == NOT_SUPPORTED ? SUCCESS : code;
}

int amdsmi_get_energy_count(void *h, uint64_t *ticks, float *resolution, uint64_t *timestamp)
{
    double microjoules = 0;
    int code = number_of(h, "energy_uj", &microjoules);
    *resolution = 15.3f;
    *ticks = (uint64_t)(microjoules / *resolution);
    *timestamp = 0;
    return code;
}

int amdsmi_get_gpu_activity(void *h, activity_t *activity)
{
    double number = 0;
    int code = number_of(h, "activity", &number);
    memset(activity, 0, sizeof *activity);
    activity->gfx = (uint32_t)number;
    return code;
}

int amdsmi_get_gpu_vram_usage(void *h, vram_t *vram)
{
    double number = 0;
    int code = number_of(h, "vram_mib", &number);
    memset(vram, 0, sizeof *vram);
    vram->used = (uint32_t)number;
    return code;
}
