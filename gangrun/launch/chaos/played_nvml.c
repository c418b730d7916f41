/* libnvidia-ml.so.1 for drills and tests: plays the values and errors of the file that $FAKE_NVML names, which is read anew at each
 * call; where there is one with the host's name behind a dot, that host reads it. One "key value" a line; "!15" is an
 * error code, "~" hangs for ever, "~PATH" as long as there is such a file; a key that is missing is NOT_SUPPORTED.
 * -DWITHOUT_... leaves functions out, as drivers of other years do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;
typedef int ret;
enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, TIMEOUT = 10 };
static char devices[64], events;
#define INDEX(device) ((int)((char *)(device) - devices))

static ret words_of(const char *key, char *out, size_t room) {
    char line[512], host[64] = "", own[512];
    const char *path = getenv("FAKE_NVML");
    gethostname(host, sizeof host - 1);
    snprintf(own, sizeof own, "%s.%s", path ? path : "", host);
    FILE *file = path ? fopen(own, "r") : NULL;
    if (path && !file) file = fopen(path, "r");
    ret answer = NOT_SUPPORTED;
    if (!file) return 999;
    while (fgets(line, sizeof line, file)) {
        size_t n = strlen(key);
        if (strncmp(line, key, n) || line[n] != ' ') continue;
        line[strcspn(line, "\n")] = 0;
        while (line[n + 1] == '~') if (!line[n + 2]) pause(); else if (access(line + n + 2, F_OK)) goto done; else usleep(5000);
        answer = line[n + 1] == '!' ? atoi(line + n + 2) : SUCCESS;
        if (!answer) snprintf(out, room, "%s", line + n + 1);
        break;
    }
done:
    fclose(file);
    return answer;
}
static ret number_of(const char *key, double *out) {
    char words[256];
    ret answer = words_of(key, words, sizeof words);
    if (!answer) *out = atof(words);
    return answer;
}
static ret gpu_number(void *device, const char *name, double *out) {
    char key[128];
    snprintf(key, sizeof key, "gpu%d.%s", INDEX(device), name);
    return number_of(key, out);
}
static ret gpu_words(void *device, const char *name, char *out, size_t room) {
    char key[128];
    snprintf(key, sizeof key, "gpu%d.%s", INDEX(device), name);
    return words_of(key, out, room);
}
#define ONE(function, type, name) \
    ret function(void *device, type *out) { double v; ret r = gpu_number(device, name, &v); if (!r) *out = (type)v; return r; }
#define TWO(function, first, second) \
    ret function(void *device, u32 *a, u32 *b) { double v, w; ret r = gpu_number(device, first, &v); \
        if (!r) r = gpu_number(device, second, &w); \
        if (!r) { *a = (u32)v; *b = (u32)w; } \
        return r; }

ret nvmlInitWithFlags(u32 flags) { double v; ret r = number_of("init", &v); (void)flags; return r == NOT_SUPPORTED ? 0 : r; }
ret nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(ret code) { (void)code; return "said by the library of the tests"; }
ret nvmlDeviceGetCount_v2(u32 *out) { double v; ret r = number_of("count", &v); if (!r) *out = (u32)v; return r; }
ret nvmlDeviceGetHandleByIndex_v2(u32 index, void **out) {
    double v;
    *out = devices + index;
    ret r = gpu_number(*out, "handle", &v);
    return r == NOT_SUPPORTED ? 0 : r;
}
ret nvmlSystemGetDriverVersion(char *out, u32 room) { return words_of("driver", out, room); }
ret nvmlDeviceGetUUID(void *device, char *out, u32 room) { return gpu_words(device, "uuid", out, room); }
ret nvmlDeviceGetName(void *device, char *out, u32 room) { return gpu_words(device, "name", out, room); }
ret nvmlDeviceGetVbiosVersion(void *device, char *out, u32 room) { return gpu_words(device, "vbios", out, room); }
ret nvmlDeviceGetInforomImageVersion(void *device, char *out, u32 room) { return gpu_words(device, "info_rom_version", out, room); }
ret nvmlDeviceGetPciInfo_v3(void *device, char *out) { memset(out, 0, 68); return gpu_words(device, "pci", out + 36, 32); }

typedef struct { u32 field, scope; long long at, took; u32 type; ret answer; u64 value; } field_value;
#ifndef WITHOUT_FIELDS
ret nvmlDeviceGetFieldValues(void *device, int count, field_value *values) {
    for (int i = 0; i < count; i++) {
        char name[32];
        double v = 0;
        if ((values[i].field > 200 && values[i].field < 223) || values[i].field == 164) /* of a link, which is the scope */
            snprintf(name, sizeof name, "link%u.field%u", values[i].scope, values[i].field);
        else
            snprintf(name, sizeof name, "field%u", values[i].field);
        values[i].answer = gpu_number(device, name, &v);
        if (values[i].answer == 15) return 15;
        values[i].type = 3;
        values[i].value = (u64)v;
    }
    return 0;
}
#endif
ret nvmlDeviceGetTotalEccErrors(void *device, u32 kind, u32 since, u64 *out) {
    char name[32];
    double v;
    snprintf(name, sizeof name, "ecc%u%u", kind, since);
    ret r = gpu_number(device, name, &v);
    if (!r) *out = (u64)v;
    return r;
}
ret nvmlDeviceGetSramEccErrorStatus(void *device, u32 *status) {
    char words[128];
    u64 *counts = (u64 *)status; /* flag; of its life: parity, ECC, L2, SM, PCIe, microcontrollers, others */
    ret r = gpu_words(device, "sram", words, sizeof words);
    if (status[0] != 0x1000068) return 25;
    if (!r) sscanf(words, "%u %llu %llu %llu %llu %llu %llu %llu", status + 24, counts + 1, counts + 2, counts + 7,
                   counts + 8, counts + 9, counts + 10, counts + 11);
    return r;
}
ret nvmlDeviceGetRemappedRows(void *device, u32 *c, u32 *u, u32 *p, u32 *f) {
    char words[128];
    ret r = gpu_words(device, "remapped", words, sizeof words);
    if (!r && sscanf(words, "%u %u %u %u", c, u, p, f) != 4) return 999;
    return r;
}
ret nvmlDeviceGetRowRemapperHistogram(void *device, u32 *banks) {
    char words[128];
    ret r = gpu_words(device, "banks", words, sizeof words);
    if (!r && sscanf(words, "%u %u %u %u %u", banks, banks + 1, banks + 2, banks + 3, banks + 4) != 5) return 999;
    return r;
}
#ifndef WITHOUT_REPAIRS
typedef struct { u32 version, channel, tpc; } repairs;
ret nvmlDeviceGetRepairStatus(void *device, repairs *out) {
    char words[64];
    ret r = gpu_words(device, "repairs", words, sizeof words);
    if (out->version != 0x100000C) return 25;
    if (!r && sscanf(words, "%u %u", &out->channel, &out->tpc) != 2) return 999;
    return r;
}
#endif
ret nvmlDeviceValidateInforom(void *device) { double v; return gpu_number(device, "info_rom", &v); }
ret nvmlDeviceGetRetiredPages(void *device, u32 cause, u32 *count, u64 *pages) {
    double v;
    ret r = gpu_number(device, cause ? "retired_dbe" : "retired_sbe", &v);
    if (r) return r;
    if (!pages) { *count = (u32)v; return v ? INSUFFICIENT_SIZE : 0; }
    for (u32 i = 0; i < (u32)v; i++) pages[i] = i;
    *count = (u32)v;
    return 0;
}
ONE(nvmlDeviceGetRetiredPagesPendingStatus, u32, "retired_pending")
#ifndef WITHOUT_NEW_TEMPERATURE
typedef struct { u32 version; u32 sensor; int value; } temperature;
ret nvmlDeviceGetTemperatureV(void *device, temperature *out) {
    double v;
    ret r = gpu_number(device, "temperature", &v);
    if (!r) out->value = (int)v;
    return r;
}
typedef struct { u32 version; int value; } margin;
ret nvmlDeviceGetMarginTemperature(void *device, margin *out) {
    double v;
    ret r = gpu_number(device, "margin", &v);
    if (!r) out->value = (int)v;
    return r;
}
ret nvmlDeviceGetMemoryInfo_v2(void *device, u64 *out) {
    double v;
    ret r = gpu_number(device, "memory_used", &v);
    if (!r) { out[1] = 80ull << 30; out[2] = 1ull << 29; out[4] = (u64)v; out[3] = out[1] - out[2] - out[4]; }
    return r;
}
ONE(nvmlDeviceGetCurrentClocksEventReasons, u64, "reasons")
#endif
ret nvmlDeviceGetTemperature(void *device, u32 sensor, u32 *out) {
    double v;
    (void)sensor;
    ret r = gpu_number(device, "temperature", &v);
    if (!r) *out = (u32)v;
    return r;
}
ret nvmlDeviceGetMemoryInfo(void *device, u64 *out) {
    double v;
    ret r = gpu_number(device, "memory_used", &v);
    if (!r) { out[0] = 80ull << 30; out[2] = (u64)v; out[1] = out[0] - out[2]; }
    return r;
}
ONE(nvmlDeviceGetCurrentClocksThrottleReasons, u64, "reasons")
ret nvmlDeviceGetTemperatureThreshold(void *device, u32 kind, u32 *out) {
    double v;
    ret r = gpu_number(device, kind == 1 ? "slowdown" : "threshold", &v);
    if (!r) *out = (u32)v;
    return r;
}
ret nvmlDeviceGetClockInfo(void *device, u32 kind, u32 *out) {
    double v;
    (void)kind;
    ret r = gpu_number(device, "clock", &v);
    if (!r) *out = (u32)v;
    return r;
}
ONE(nvmlDeviceGetEnforcedPowerLimit, u32, "power_limit")
ONE(nvmlDeviceGetPowerUsage, u32, "power")
ONE(nvmlDeviceGetCurrPcieLinkWidth, u32, "width")
ONE(nvmlDeviceGetMaxPcieLinkWidth, u32, "width_max")
ONE(nvmlDeviceGetCurrPcieLinkGeneration, u32, "generation")
ONE(nvmlDeviceGetMaxPcieLinkGeneration, u32, "generation_max")
ONE(nvmlDeviceGetPcieReplayCounter, u32, "replays")
ONE(nvmlDeviceGetPersistenceMode, u32, "persistence")
ONE(nvmlDeviceGetComputeMode, u32, "compute_mode")
TWO(nvmlDeviceGetEccMode, "ecc_mode", "ecc_pending")
TWO(nvmlDeviceGetMigMode, "mig", "mig")
ret nvmlDeviceGetUtilizationRates(void *device, u32 *out) {
    double v;
    ret r = gpu_number(device, "busy", &v);
    if (!r) out[0] = (u32)v, out[1] = 0;
    return r;
}
typedef struct { u32 pid; u64 memory; u32 gpu, compute; } process;
ret nvmlDeviceGetComputeRunningProcesses_v3(void *device, u32 *count, process *out) {
    double v;
    ret r = gpu_number(device, "processes", &v);
    if (r) return r;
    if (*count < (u32)v || (v && !out)) { *count = (u32)v; return INSUFFICIENT_SIZE; }
    for (u32 i = 0; i < (u32)v; i++) out[i] = (process){4000 + i, 1, 0, 0};
    *count = (u32)v;
    return 0;
}
typedef struct { u32 version; unsigned char cluster[16]; ret status; u32 clique, state, mask; unsigned char summary; } fabric;
ret nvmlDeviceGetGpuFabricInfoV(void *device, fabric *out) {
    char words[64];
    u32 state, summary, mask = 0;
    ret r = gpu_words(device, "fabric", words, sizeof words);
    if (r) return r;
#ifdef OLD_FABRIC
    if (out->version != 0x2000024) return 25;
#else
    if (out->version != 0x3000028) return 25;
#endif
    if (sscanf(words, "%u %d %u %u", &state, &out->status, &summary, &mask) < 3) return 999;
    out->state = state, out->mask = mask;
    if (out->version == 0x3000028) out->summary = (unsigned char)summary;
    return 0;
}
ret nvmlDeviceGetNvLinkState(void *device, u32 link, u32 *out) {
    char name[32];
    double v;
    snprintf(name, sizeof name, "link%u", link);
    ret r = gpu_number(device, name, &v);
    if (!r) *out = (u32)v;
    return r;
}
ret nvmlDeviceGetNvLinkErrorCounter(void *device, u32 link, u32 counter, u64 *out) {
    char name[48];
    double v;
    snprintf(name, sizeof name, "link%u.errors%u", link, counter);
    ret r = gpu_number(device, name, &v);
    if (!r) *out = (u64)v;
    return r;
}

typedef struct { void *device; u64 type, data; u32 gpu, compute; } event;
static u64 registered[64];
static int told;
ret nvmlEventSetCreate(void **out) { *out = &events; return 0; }
ret nvmlEventSetFree(void *set) { (void)set; return 0; }
ONE(nvmlDeviceGetSupportedEventTypes, u64, "event_types")
ret nvmlDeviceRegisterEvents(void *device, u64 types, void *set) {
    double v;
    ret r = gpu_number(device, "event_types", &v);
    (void)set;
    if (r) return r;
    if (types & ~(u64)v) return NOT_SUPPORTED;
    registered[INDEX(device)] = types;
    return 0;
}
ret nvmlEventSetWait_v2(void *set, event *out, u32 within_ms) {
    char key[32], words[64];
    u32 gpu;
    (void)set;
    for (u32 waited = 0;; waited += 5) {
        snprintf(key, sizeof key, "event%d", told);
        ret r = words_of(key, words, sizeof words);
        if (!r && sscanf(words, "%u %llu %llu", &gpu, &out->type, &out->data) == 3) {
            told++;
            out->device = devices + gpu;
            if (registered[gpu] & out->type) return 0;
        } else if (r && r != NOT_SUPPORTED) return r;
        if (waited >= within_ms) return TIMEOUT;
        usleep(5000);
    }
}
