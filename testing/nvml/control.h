/* Reads the file that drives the stubs; its format is at the top of libnvidia-ml.c. */

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long u64;

/* The value of a key. 1 if there is a line with it. */
static int text(const char *key, char *value, size_t size) {
    const char *path = getenv("NVML_STUB_CONTROL");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[4096];
    size_t length = strlen(key);
    int found = 0;
    while (file && !found && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, length) == 0 && line[length] == ' ') {
            line[strcspn(line, "\n")] = 0;
            snprintf(value, size, "%s", line + length + 1);
            found = 1;
        }
    }
    if (file) fclose(file);
    return found;
}

/* Up to `most` numbers of a key, decimal or 0x…; how many there are. The rest is left as it was. */
static int numbers(const char *key, u64 *values, int most) {
    char value[4096], *at = value, *end;
    int count = 0;
    if (!text(key, value, sizeof value)) return 0;
    while (count < most) {
        u64 number = strtoull(at, &end, 0);
        if (end == at) break;
        values[count++] = number;
        at = end;
    }
    return count;
}

static u64 number(const char *key, u64 otherwise) {
    numbers(key, &otherwise, 1);
    return otherwise;
}

/* ---- What programs take by the stub of CUDA: a file `GPU.PID` for each, with its bytes, beside the control file ---- */

static const char *taken_path(const char *name) {
    static _Thread_local char path[4096];
    snprintf(path, sizeof path, "%s.taken/%s", getenv("NVML_STUB_CONTROL"), name);
    return path;
}

/* Call `each` for every process that is there and has memory of a GPU. */
static void taken(unsigned gpu, void (*each)(unsigned pid, u64 bytes, void *more), void *more) {
    DIR *directory = opendir(taken_path(""));
    struct dirent *entry;
    while (directory && (entry = readdir(directory))) {
        unsigned of, pid;
        u64 bytes = 0;
        if (sscanf(entry->d_name, "%u.%u", &of, &pid) != 2 || of != gpu || kill((pid_t)pid, 0) != 0) continue;
        FILE *file = fopen(taken_path(entry->d_name), "r");
        if (!file) continue;
        if (fscanf(file, "%llu", &bytes) == 1) each(pid, bytes, more);
        fclose(file);
    }
    if (directory) closedir(directory);
}
