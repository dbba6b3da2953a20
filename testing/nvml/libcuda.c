/* A stub of NVIDIA's libcuda.so.1: the calls of bench/gpu/cuda.py, over the GPUs of the file that drives libnvidia-ml.c.
 *
 * A process sees the one GPU that CUDA_VISIBLE_DEVICES names by its UUID, or the first. It has a context there, which is
 * as large as `context MIB` in the file says, and what it takes is told to the other stub. As under MPS, context and
 * allocations stay within CUDA_MPS_PINNED_DEVICE_MEM_LIMIT. */

#include <sys/stat.h>
#include <unistd.h>

#include "control.h"

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100 };
static const u64 MIB = 1024 * 1024;
static unsigned gpu = 0;
static u64 mine = 0;

static u64 of_gpu(const char *what, int which) {
    char key[64];
    u64 values[3] = {0, 0, 0};
    snprintf(key, sizeof key, "%u.%s", gpu, what);
    numbers(key, values, 3);
    return values[which];
}

static void add(unsigned pid, u64 bytes, void *more) {
    (void)pid;
    *(u64 *)more += bytes;
}

static u64 usable(void) { return of_gpu("memory", 0) - of_gpu("memory", 1); }

static u64 left(void) {
    u64 used = 0, most = usable();
    const char *limit = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), *is = limit ? strchr(limit, '=') : NULL;
    taken(gpu, add, &used);
    most = used < most ? most - used : 0;
    if (!is) return most;
    u64 own = strtoull(is + 1, NULL, 10) * MIB;
    own = mine < own ? own - mine : 0;
    return own < most ? own : most;
}

static int take(u64 bytes) {
    char name[64];
    if (bytes > left()) return OUT_OF_MEMORY;
    mine += bytes;
    mkdir(taken_path(""), 0777);
    snprintf(name, sizeof name, "%u.%u", gpu, (unsigned)getpid());
    FILE *file = fopen(taken_path(name), "w");
    if (!file) return INVALID_VALUE;
    fprintf(file, "%llu", mine);
    fclose(file);
    return SUCCESS;
}

int cuInit(unsigned flags) {
    const char *wanted = getenv("CUDA_VISIBLE_DEVICES");
    char key[64], uuid[128];
    unsigned count = (unsigned)number("gpus", 0);
    (void)flags;
    if (!wanted || !*wanted) return count ? SUCCESS : NO_DEVICE;
    for (gpu = 0; gpu < count; gpu++) {
        snprintf(key, sizeof key, "%u.uuid", gpu);
        if (text(key, uuid, sizeof uuid) && strcmp(uuid, wanted) == 0) return SUCCESS;
    }
    return NO_DEVICE;
}

int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, ordinal ? INVALID_VALUE : SUCCESS; }
int cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)device;
    *context = &mine;
    return take(number("context", 256) * MIB);
}
int cuCtxSetCurrent(void *context) { return context ? SUCCESS : INVALID_VALUE; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { return *free = left(), *total = usable(), SUCCESS; }
int cuMemAlloc_v2(u64 *pointer, size_t size) { return *pointer = mine, take(size); }
int cuMemsetD8_v2(u64 pointer, unsigned char value, size_t size) { return (void)pointer, (void)value, (void)size, SUCCESS; }
int cuGetErrorName(int error, const char **name) {
    *name = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : error == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR";
    return SUCCESS;
}
