/* A stub of NVIDIA's management library: what a test wrote into a file, told through NVML's C interface, so that the
 * real binding (pynvml) is exercised without a GPU. testing/nvml/stub.py builds it and writes the file.
 *
 * The file is named by the environment variable NVML_STUB_CONTROL and read again at every call. A line is a key, a
 * blank and a value; a line that starts with # is a comment; the first line with a key counts:
 *
 *   driver 580.95.05            version of the kernel module
 *   library 580.95.05           version of this library: read once, when the library is initialized for the first time
 *                               in a process, as a real process keeps the file that it has loaded. Every call fails
 *                               with NVML_ERROR_LIB_RM_VERSION_MISMATCH while the two differ.
 *   gpus 2                      how many; their keys start with their index:
 *   0.uuid GPU-…
 *   0.name Tesla T4
 *   0.bus 00000000:3B:00.0
 *   0.minor 0
 *   0.memory 16106127360 314572800 0      total, reserved, used in bytes; without the line: Not Supported
 *   0.mig 1                     1 on, 0 off; without the line: Not Supported
 *   0.mig.0.uuid MIG-…          its first MIG device, with name, memory, gi, ci and slices
 *   0.mig.0.gi 7                number of its GPU instance
 *   0.mig.0.ci 0                number of its compute instance
 *   event.1 0 8 79              an event: GPU, type, data, and for MIG the GPU instance. Numbered from 1; only those
 *                               that are written after an event set was made arrive, once in each process.
 *   fail.nvmlInitWithFlags 9    this function returns this NVML error; fail.all for every function
 *   0.fail.all 15               the same for one GPU (this one is lost), or 0.mig.0.fail.… for one MIG device
 *   hang.nvmlInitWithFlags 1    this function returns when the line is gone; hang.all for every function
 *
 * To add a function: write it in a section of your own at the end, begin it with CHECK (or CHECK_DEVICE), look your own
 * keys up with `numbers` or `text`, and describe them at the top of your section. A function that an old driver lacks
 * is `fail.NAME 13`: the binding raises the same error as for a missing symbol. */

#include <time.h>

#include "control.h"

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10, LIB_RM_VERSION_MISMATCH = 18, UNKNOWN = 999
};
typedef struct device *Device; /* BASE + GPU * 256, and + 1 + n for its MIG device n; never followed */

static const size_t BASE = 0x100000;
static int initialized = 0;
static char loaded[128] = "";

/* The key of something of a device, in a buffer that the next call uses again. */
static const char *of(Device device, const char *what) {
    static _Thread_local char key[256];
    size_t at = (size_t)device - BASE, gpu = at >> 8, mig = at & 255;
    if (mig) snprintf(key, sizeof key, "%zu.mig.%zu.%s", gpu, mig - 1, what);
    else snprintf(key, sizeof key, "%zu.%s", gpu, what);
    return key;
}

static Device gpu(size_t index) { return (Device)(BASE + (index << 8)); }
static int is_mig(Device device) { return ((size_t)device & 255) != 0; }
static Device parent(Device device) { return (Device)((size_t)device & ~(size_t)255); }

/* ---- What every call checks ---- */

static int mismatch(void) {
    char driver[128];
    return text("driver", driver, sizeof driver) && loaded[0] && strcmp(driver, loaded) != 0;
}

static void hang(const char *function) {
    char key[256];
    struct timespec slice = {0, 10 * 1000 * 1000};
    snprintf(key, sizeof key, "hang.%s", function);
    while (number(key, number("hang.all", 0))) nanosleep(&slice, NULL);
}

static int failure(const char *function) {
    char key[256];
    hang(function);
    snprintf(key, sizeof key, "fail.%s", function);
    int error = (int)number(key, number("fail.all", OK));
    return error ? error : mismatch() ? LIB_RM_VERSION_MISMATCH : OK;
}

static int device_failure(Device device, const char *function) {
    char what[256];
    snprintf(what, sizeof what, "fail.%s", function);
    u64 error = number(of(device, what), number(of(device, "fail.all"), OK));
    if (!error && is_mig(device)) error = number(of(parent(device), "fail.all"), OK);
    return error ? (int)error : failure(function);
}

#define CHECK()                                                   \
    do {                                                          \
        int _error = initialized ? failure(__func__) : UNINITIALIZED; \
        if (_error) return _error;                                \
    } while (0)
#define CHECK_DEVICE(device)                                      \
    do {                                                          \
        int _error = initialized ? device_failure(device, __func__) : UNINITIALIZED; \
        if (_error) return _error;                                \
    } while (0)

static int device_text(Device device, const char *what, char *buffer, unsigned size) {
    char value[4096];
    if (!text(of(device, what), value, sizeof value)) return NOT_SUPPORTED;
    if (strlen(value) >= size) return INSUFFICIENT_SIZE;
    strcpy(buffer, value);
    return OK;
}

static int device_number(Device device, const char *what, unsigned *value) {
    u64 found;
    if (!numbers(of(device, what), &found, 1)) return NOT_SUPPORTED;
    *value = (unsigned)found;
    return OK;
}

/* ---- Start, end, versions, error strings ---- */

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (!loaded[0] && !text("library", loaded, sizeof loaded)) text("driver", loaded, sizeof loaded);
    int error = failure(__func__);
    if (!error) initialized++;
    return error;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    CHECK();
    initialized--;
    return OK;
}

int nvmlSystemGetDriverVersion(char *version, unsigned size) {
    char value[128];
    CHECK();
    if (!text("driver", value, sizeof value)) return NOT_SUPPORTED;
    snprintf(version, size, "%s", value);
    return OK;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    CHECK();
    *version = (int)number("cuda", 0);
    return *version ? OK : NOT_SUPPORTED;
}

const char *nvmlErrorString(int error) {
    switch (error) {
        case OK: return "The operation was successful";
        case UNINITIALIZED: return "Uninitialized";
        case INVALID_ARGUMENT: return "Invalid argument";
        case NOT_SUPPORTED: return "Not supported";
        case 4: return "Insufficient permissions";
        case NOT_FOUND: return "Not found";
        case INSUFFICIENT_SIZE: return "Insufficient size";
        case 9: return "Driver not loaded";
        case TIMEOUT: return "Timeout";
        case 13: return "Function not found";
        case 15: return "GPU is lost";
        case 16: return "GPU requires restart";
        case 17: return "The operating system has blocked the request";
        case LIB_RM_VERSION_MISMATCH: return "RM has detected an NVML/RM version mismatch";
        default: return "Unknown Error";
    }
}

/* ---- GPUs ---- */

int nvmlDeviceGetCount_v2(unsigned *count) {
    CHECK();
    *count = (unsigned)number("gpus", 0);
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
    CHECK_DEVICE(gpu(index));
    if (index >= number("gpus", 0)) return INVALID_ARGUMENT;
    *device = gpu(index);
    return OK;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device *device) {
    char found[128];
    CHECK();
    for (size_t index = 0; index < number("gpus", 0); index++) {
        for (size_t mig = 0; mig <= 16; mig++) {
            Device each = (Device)((size_t)gpu(index) + mig);
            if (text(of(each, "uuid"), found, sizeof found) && strcmp(found, uuid) == 0) {
                *device = each;
                return device_failure(each, __func__);
            }
        }
    }
    return NOT_FOUND;
}

int nvmlDeviceGetIndex(Device device, unsigned *index) {
    CHECK_DEVICE(device);
    size_t at = (size_t)device - BASE;
    *index = (unsigned)(is_mig(device) ? (at & 255) - 1 : at >> 8);
    return OK;
}

int nvmlDeviceGetUUID(Device device, char *uuid, unsigned size) {
    CHECK_DEVICE(device);
    return device_text(device, "uuid", uuid, size);
}

int nvmlDeviceGetName(Device device, char *name, unsigned size) {
    CHECK_DEVICE(device);
    return device_text(device, "name", name, size);
}

int nvmlDeviceGetMinorNumber(Device device, unsigned *minor) {
    CHECK_DEVICE(device);
    return device_number(device, "minor", minor);
}

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} PciInfo;

int nvmlDeviceGetPciInfo_v3(Device device, PciInfo *info) {
    CHECK_DEVICE(device);
    memset(info, 0, sizeof *info);
    int error = device_text(parent(device), "bus", info->busId, sizeof info->busId);
    if (!error && sscanf(info->busId, "%x:%x:%x", &info->domain, &info->bus, &info->device) == 3)
        snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "%04x:%02x:%02x.0", info->domain & 0xffff,
                 info->bus & 0xff, info->device & 0xff);
    return error;
}

int nvmlDeviceGetArchitecture(Device device, unsigned *architecture) {
    CHECK_DEVICE(device);
    *architecture = (unsigned)number(of(parent(device), "architecture"), 0);
    return *architecture ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor) {
    u64 found[2];
    CHECK_DEVICE(device);
    if (!numbers(of(parent(device), "capability"), found, 2)) return NOT_SUPPORTED;
    *major = (int)found[0];
    *minor = (int)found[1];
    return OK;
}

/* ---- Memory ---- */

typedef struct { u64 total, free, used; } Memory;
typedef struct { unsigned version; u64 total, reserved, free, used; } Memory_v2;

/* Total, reserved, used. */
static int memory(Device device, u64 amounts[3]) {
    memset(amounts, 0, 3 * sizeof *amounts);
    return numbers(of(device, "memory"), amounts, 3) ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetMemoryInfo(Device device, Memory *info) {
    u64 amounts[3];
    CHECK_DEVICE(device);
    int error = memory(device, amounts);
    /* As documented: here "used" includes what the driver keeps. */
    if (!error) *info = (Memory){amounts[0], amounts[0] - amounts[1] - amounts[2], amounts[1] + amounts[2]};
    return error;
}

int nvmlDeviceGetMemoryInfo_v2(Device device, Memory_v2 *info) {
    u64 amounts[3];
    CHECK_DEVICE(device);
    if (info->version != 0x02000028) return 25;
    int error = memory(device, amounts);
    if (!error)
        *info = (Memory_v2){info->version, amounts[0], amounts[1], amounts[0] - amounts[1] - amounts[2], amounts[2]};
    return error;
}

/* ---- MIG ---- */

int nvmlDeviceGetMigMode(Device device, unsigned *current, unsigned *pending) {
    CHECK_DEVICE(device);
    int error = device_number(device, "mig", current);
    if (!error) *pending = *current;
    return error;
}

int nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned *count) {
    CHECK_DEVICE(device);
    *count = numbers(of(device, "mig"), &(u64){0}, 1) ? 7 : 0;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device *mig) {
    char uuid[128];
    Device found = (Device)((size_t)device + 1 + index);
    CHECK_DEVICE(device);
    if (!text(of(found, "uuid"), uuid, sizeof uuid)) return NOT_FOUND;
    *mig = found;
    return OK;
}

int nvmlDeviceIsMigDeviceHandle(Device device, unsigned *answer) {
    CHECK_DEVICE(device);
    *answer = (unsigned)is_mig(device);
    return OK;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device mig, Device *device) {
    CHECK_DEVICE(mig);
    *device = parent(mig);
    return OK;
}

int nvmlDeviceGetGpuInstanceId(Device device, unsigned *id) {
    CHECK_DEVICE(device);
    return is_mig(device) ? device_number(device, "gi", id) : NOT_SUPPORTED;
}

int nvmlDeviceGetComputeInstanceId(Device device, unsigned *id) {
    CHECK_DEVICE(device);
    return is_mig(device) ? device_number(device, "ci", id) : NOT_SUPPORTED;
}

/* ---- Field values ----
 *
 *   0.field.230 1               value of a field as an unsigned number; without the line: Not Supported */

typedef struct {
    unsigned fieldId, scopeId;
    long long timestamp, latencyUsec;
    unsigned valueType;
    int nvmlReturn;
    union { unsigned uiVal; u64 ullVal; } value;
} FieldValue;

int nvmlDeviceGetFieldValues(Device device, int count, FieldValue *values) {
    CHECK_DEVICE(device);
    for (int i = 0; i < count; i++) {
        char what[64];
        snprintf(what, sizeof what, "field.%u", values[i].fieldId);
        values[i].valueType = 1;
        values[i].nvmlReturn = device_number(device, what, &values[i].value.uiVal);
    }
    return OK;
}

/* ---- Events ---- */

typedef struct {
    Device device;
    u64 eventType, eventData;
    unsigned gpuInstanceId, computeInstanceId;
} Event;

static u64 seen = 0; /* number of the last event that this process has had */

/* An event: GPU, type, data, GPU instance. 0 if there is none with this number. */
static int event(u64 which, u64 found[4]) {
    char key[64];
    snprintf(key, sizeof key, "event.%llu", which);
    found[3] = 0xffffffff;
    return numbers(key, found, 4) >= 3;
}

int nvmlEventSetCreate(void **set) {
    u64 ignored[4];
    CHECK();
    while (event(seen + 1, ignored)) seen++;
    *set = malloc(1);
    return OK;
}

int nvmlEventSetFree(void *set) {
    free(set);
    CHECK();
    return OK;
}

int nvmlDeviceGetSupportedEventTypes(Device device, u64 *types) {
    CHECK_DEVICE(device);
    *types = number(of(device, "events"), 0xff);
    return OK;
}

int nvmlDeviceRegisterEvents(Device device, u64 types, void *set) {
    (void)types, (void)set;
    CHECK_DEVICE(device);
    return OK;
}

int nvmlEventSetWait_v2(void *set, Event *data, unsigned milliseconds) {
    struct timespec now, slice = {0, 20 * 1000 * 1000};
    u64 found[4], end;
    (void)set;
    clock_gettime(CLOCK_MONOTONIC, &now);
    end = (u64)now.tv_sec * 1000 + (u64)now.tv_nsec / 1000000 + milliseconds;
    do {
        CHECK();
        if (event(seen + 1, found)) {
            seen++;
            *data = (Event){gpu(found[0]), found[1], found[2], (unsigned)found[3], 0xffffffff};
            return OK;
        }
        nanosleep(&slice, NULL);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((u64)now.tv_sec * 1000 + (u64)now.tv_nsec / 1000000 < end);
    return TIMEOUT;
}

/* ---- Memory limits of cgroups ----
 *
 *   limits dmem                 who counts: dmem (limits nest), misc (they do not); without the line: Not Supported
 *   limits.root 0               the caller is not root
 *   0.charge.1 1048576 /path    bytes that are charged to a cgroup itself, numbered from 1
 *
 * The limits are the kernel's: they outlive a process, in a file beside the control file. A line of it is the GPU, the
 * inode of the cgroup, its hard limit and its path; a cgroup that was removed has no limit any more. */

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NO_PERMISSION = 4, OPERATING_SYSTEM = 17, MOST_LIMITS = 4096 };
static const u64 NO_LIMIT = 0xffffffffffffffffULL;

typedef struct { const char *nameSpace; u64 softLimit, hardLimit; } SetMemoryLimits;
typedef struct { const char *nameSpace; u64 softLimit, hardLimit, currentUsed; } GetMemoryLimits;
typedef struct { size_t device; u64 inode, hard; char path[1024]; } Entry;

static Entry entries[MOST_LIMITS];
static int entry_count;
static int entries_lock = -1;

/* Who counts: 'd', 'm', or 0. */
static char counter(void) {
    char value[16];
    return text("limits", value, sizeof value) ? value[0] : 0;
}

static u64 inode(const char *path) {
    struct stat found;
    return stat(path, &found) == 0 && S_ISDIR(found.st_mode) ? (u64)found.st_ino : 0;
}

static const char *limits_path(const char *ending) {
    static _Thread_local char path[4096];
    snprintf(path, sizeof path, "%s.limits%s", getenv("NVML_STUB_CONTROL"), ending);
    return path;
}

/* Read all limits; until `entries_close` no other process or thread does. */
static void entries_open(void) {
    Entry each;
    int lock = open(limits_path(".lock"), O_CREAT | O_RDWR, 0600);
    flock(lock, LOCK_EX);
    entries_lock = lock;
    entry_count = 0;
    FILE *file = fopen(limits_path(""), "r");
    while (file && fscanf(file, "%zu %llu %llu %1023[^\n]", &each.device, &each.inode, &each.hard, each.path) == 4)
        if (inode(each.path) == each.inode && entry_count < MOST_LIMITS) entries[entry_count++] = each;
    if (file) fclose(file);
}

static void entries_close(int changed) {
    char fresh[4096];  /* in its place at once: tests read the file without the lock */
    snprintf(fresh, sizeof fresh, "%s", limits_path(".new"));
    FILE *file = changed ? fopen(fresh, "w") : NULL;
    for (int i = 0; file && i < entry_count; i++)
        fprintf(file, "%zu %llu %llu %s\n", entries[i].device, entries[i].inode, entries[i].hard, entries[i].path);
    if (file && fclose(file) == 0) rename(fresh, limits_path(""));
    close(entries_lock);
}

static Entry *entry(size_t device, const char *path) {
    for (int i = 0; i < entry_count; i++)
        if (entries[i].device == device && strcmp(entries[i].path, path) == 0) return &entries[i];
    return NULL;
}

/* The limit that a cgroup has itself, or under misc the nearest above it. */
static Entry *nearest(size_t device, const char *path) {
    char at[1024], *slash;
    snprintf(at, sizeof at, "%s", path);
    Entry *found = entry(device, at);
    while (!found && counter() == 'm' && (slash = strrchr(at, '/')) && slash != at) {
        *slash = 0;
        found = entry(device, at);
    }
    return found;
}

/* Bytes that count against a cgroup's limit: its own, and where limits nest those below it. */
static u64 charged(Device device, const char *path) {
    char value[2048], what[64], *end;
    size_t length = strlen(path);
    u64 sum = 0;
    for (int i = 1;; i++) {
        snprintf(what, sizeof what, "charge.%d", i);
        if (!text(of(device, what), value, sizeof value)) return sum;
        u64 bytes = strtoull(value, &end, 0);
        const char *charge = end + 1;
        if (strcmp(charge, path) == 0 ||
            (counter() == 'd' && strncmp(charge, path, length) == 0 && charge[length] == '/'))
            sum += bytes;
    }
}

int nvmlDeviceSetMemoryLimits_v1(Device device, SetMemoryLimits *limits) {
    u64 amounts[3];
    CHECK_DEVICE(device);
    if (!number("limits.root", 1)) return NO_PERMISSION;
    if (is_mig(device) || !counter()) return NOT_SUPPORTED;
    if (!limits || !limits->nameSpace) return INVALID_ARGUMENT;
    u64 found = inode(limits->nameSpace), hard = limits->hardLimit;
    if (!found) return OPERATING_SYSTEM;
    if (limits->softLimit > hard) return INVALID_ARGUMENT;
    if (hard != NO_LIMIT && !memory(device, amounts) && hard > amounts[0]) return INVALID_ARGUMENT;
    if (counter() == 'm' && hard < charged(device, limits->nameSpace)) return INVALID_ARGUMENT;
    entries_open();
    Entry *old = entry((size_t)device, limits->nameSpace);
    if (old) *old = entries[--entry_count];
    if (hard != NO_LIMIT && entry_count < MOST_LIMITS) {
        Entry *fresh = &entries[entry_count++];
        *fresh = (Entry){(size_t)device, found, hard, ""};
        snprintf(fresh->path, sizeof fresh->path, "%s", limits->nameSpace);
    }
    entries_close(1);
    return OK;
}

int nvmlDeviceGetMemoryLimits_v1(Device device, GetMemoryLimits *limits) {
    CHECK_DEVICE(device);
    if (is_mig(device) || !counter()) return NOT_SUPPORTED;
    if (!limits || !limits->nameSpace) return INVALID_ARGUMENT;
    if (!inode(limits->nameSpace)) return OPERATING_SYSTEM;
    entries_open();
    Entry *found = nearest((size_t)device, limits->nameSpace);
    if (found) {
        limits->softLimit = 0;
        limits->hardLimit = found->hard;
        limits->currentUsed = charged(device, found->path);
    }
    entries_close(0);
    return found ? OK : counter() == 'm' ? NOT_SUPPORTED : NOT_FOUND;
}

/* ---- Processes ----
 *
 *   0.compute 100 1048576 101 -1   PID and bytes of each process in the list; -1: the driver does not say how many
 *   0.graphics …, 0.mps …          the other two lists; without a line a list is empty
 *   0.compute.many 9000 500 4096   the first PID, how many more there are, and bytes of each */

typedef struct {
    unsigned pid;
    u64 usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
} ProcessInfo;

typedef struct {
    ProcessInfo *infos;
    unsigned count, size;
} Listed;

static void listed(unsigned pid, u64 bytes, void *more) {
    Listed *to = more;
    if (to->count < to->size) to->infos[to->count] = (ProcessInfo){pid, bytes, 0xffffffff, 0xffffffff};
    to->count++;
}

static int processes(Device device, const char *list, unsigned *count, ProcessInfo *infos) {
    u64 found[256], many[3] = {0, 0, 0};
    char what[64];
    unsigned few = (unsigned)numbers(of(device, list), found, 256) / 2;
    Listed to = {infos, 0, *count};
    snprintf(what, sizeof what, "%s.many", list);
    numbers(of(device, what), many, 3);
    for (unsigned each = 0; each < few; each++) listed((unsigned)found[2 * each], found[2 * each + 1], &to);
    for (unsigned each = 0; each < many[1]; each++) listed((unsigned)many[0] + each, many[2], &to);
    if (!is_mig(device) && strcmp(list, "compute") == 0)
        taken((unsigned)(((size_t)device - BASE) >> 8), listed, &to);
    *count = to.count;
    return to.count > to.size ? INSUFFICIENT_SIZE : OK;
}

#define PROCESSES(function, list)                                            \
    int function(Device device, unsigned *count, ProcessInfo *infos) {       \
        CHECK_DEVICE(device);                                                \
        return processes(device, list, count, infos);                        \
    }

PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, "compute")
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, "compute")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, "graphics")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics")
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, "mps")
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mps")

/* ---- Compute modes ----
 *   0.mode 3                    1 exclusive to a thread, 2 prohibited, 3 exclusive to a process; without the line:
 *                               Not Supported */

int nvmlDeviceGetComputeMode(Device device, unsigned *mode) {
    CHECK_DEVICE(device);
    return device_number(device, "mode", mode);
}

/* ---- Sensors ----
 *   0.utilization 45            per cent of the last second; without a line of these: Not Supported
 *   0.temperature 61            degrees Celsius
 *   0.power 70500               milliwatts */

int nvmlDeviceGetUtilizationRates(Device device, unsigned *gpu_and_memory) {
    CHECK_DEVICE(device);
    gpu_and_memory[1] = 0;
    return device_number(device, "utilization", gpu_and_memory);
}

int nvmlDeviceGetTemperature(Device device, int sensor, unsigned *celsius) {
    CHECK_DEVICE(device);
    return sensor ? INVALID_ARGUMENT : device_number(device, "temperature", celsius);
}

int nvmlDeviceGetPowerUsage(Device device, unsigned *milliwatts) {
    CHECK_DEVICE(device);
    return device_number(device, "power", milliwatts);
}
