/* SPDX-License-Identifier: Apache-2.0 */
/* oarsong info: the version, the machine, which backends work here, and why the
 * others do not. */
#include "tool.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <oarsong/oarsong.h>

enum { TEXT = 160 };

/* The first line of a file without its end; "" if there is none. */
static void read_line(const char *path, char text[TEXT])
{
    FILE *file = fopen(path, "r");

    text[0] = 0;
    if (file != NULL && fgets(text, TEXT, file) == NULL)
        text[0] = 0;
    if (file != NULL)
        fclose(file);
    text[strcspn(text, "\n")] = 0;
}

/* ---- this library -------------------------------------------------------- */

/* The build text is "version, compiler, BLAS, instruction set". */
static void build_part(int wanted, char text[TEXT])
{
    const char *from = oar_build_text(), *end;

    for (int i = 0; i < wanted && from != NULL; i++) {
        from = strstr(from, ", ");
        from = from != NULL ? from + 2 : NULL;
    }
    text[0] = 0;
    if (from == NULL)
        return;
    end = strstr(from, ", ");
    snprintf(text, TEXT, "%.*s",
             end != NULL ? (int)(end - from) : (int)strlen(from), from);
}

static double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The fastest of many f32 products of 512 x 512, in GFLOP/s; 0 if one failed.
 * Other programs on the core only ever make one slower. */
static double product_rate(void)
{
    enum { N = 512 };
    oar_tensor *a = oar_full(NULL, OAR_F32, OAR_SHAPE(N, N), 0.5), *b;
    double until = seconds() + 0.1, best = 0;

    do {
        double start = seconds();

        b = oar_matmul(NULL, a, a);
        start = seconds() - start;
        if (best == 0 || start < best)
            best = start;
        oar_tensor_release(b);
    } while (b != NULL && seconds() < until);
    oar_tensor_release(a);
    return b != NULL ? 2e-9 * N * N * N / best : 0;
}

static void print_library(void)
{
    char version[TEXT], compiler[TEXT], blas[TEXT];

    build_part(0, version);
    build_part(1, compiler);
    build_part(2, blas);
    printf("oarsong    %s (headers %s), %s\n", version, OAR_VERSION_TEXT,
           compiler);
    printf("blas       %s: %.0f GFLOP/s in f32 products of 512 x 512\n", blas,
           product_rate());
}

/* ---- the machine --------------------------------------------------------- */

/* What the kernel calls the processor; on some only its number is known. */
static void model_of(char text[TEXT])
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[512];
    const char *value;

    snprintf(text, TEXT, "unknown processor");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        int name = strncmp(line, "model name", 10) == 0;
        value = strchr(line, ':');
        if (value == NULL || (!name && strncmp(line, "CPU part", 8) != 0))
            continue;
        snprintf(text, TEXT, "%s%.100s", name ? "" : "part ",
                 value + 1 + strspn(value + 1, " "));
        text[strcspn(text, "\n")] = 0;
        break;
    }
    if (file != NULL)
        fclose(file);
}

static int allowed_cores(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}

static void print_cpu(void)
{
    struct utsname name;
    char model[TEXT], isa[TEXT];

    model_of(model);
    build_part(3, isa);
    if (uname(&name) == 0)
        printf("machine    %s, %s %s\n", name.machine, name.sysname,
               name.release);
    printf("cpu        %s, %d of %ld cores, reduces with %s\n", model,
           allowed_cores(), sysconf(_SC_NPROCESSORS_ONLN), isa);
}

static int print_cache(int index, const char *before)
{
    char path[TEXT], level[TEXT], type[TEXT], size[TEXT];
    static const char folder[] = "/sys/devices/system/cpu/cpu0/cache";

    snprintf(path, sizeof path, "%s/index%d/level", folder, index);
    read_line(path, level);
    snprintf(path, sizeof path, "%s/index%d/type", folder, index);
    read_line(path, type);
    snprintf(path, sizeof path, "%s/index%d/size", folder, index);
    read_line(path, size);
    if (size[0] == 0)
        return 0;
    if (strcmp(type, "Instruction") != 0)
        printf("%sL%s %s", before, level, size);
    return strcmp(type, "Instruction") != 0 ? 1 : -1;
}

static void print_caches(void)
{
    const char *before = "caches     ";

    for (int i = 0; i < 8; i++) {
        int printed = print_cache(i, before);
        if (printed == 0)
            break;
        if (printed > 0)
            before = ", ";
    }
    if (before[0] == ',')
        printf("\n");
}

static void print_memory(void)
{
    double gib = (double)sysconf(_SC_PHYS_PAGES) *
                 (double)sysconf(_SC_PAGESIZE) / (1 << 30);
    char shared[TEXT], private[TEXT];

    read_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled", shared);
    read_line("/sys/kernel/mm/transparent_hugepage/enabled", private);
    printf("memory     %.1f GiB, pages of %ld bytes; huge pages: private %s; "
           "shared %s\n",
           gib, sysconf(_SC_PAGESIZE), private[0] != 0 ? private : "none",
           shared[0] != 0 ? shared : "none");
}

/* ---- what works ---------------------------------------------------------- */

static void print_gpu(int index)
{
    oar_device device = oar_device_of(OAR_CUDA, index);
    oar_device_properties p = oar_device_properties_init();
    const double gib = 1 << 30;

    printf("%-10s %-8s ", "", oar_device_text(device).text);
    if (oar_device_describe(device, &p) != OAR_OK) {
        printf("does not work: %s\n", oar_last_error_text());
        return;
    }
    printf("%s at %s, capability %d.%d, %d processors, %.1f of %.1f GiB free; "
           "driver of CUDA %d.%d; ",
           p.name, p.bus, p.major, p.minor, p.processors,
           (double)p.free_bytes / gib, (double)p.memory_bytes / gib,
           p.driver_version / 1000, p.driver_version % 1000 / 10);
    if (oar_device_kernels(device) == OAR_OK)
        printf("our kernels work\n");
    else
        printf("our kernels do not: %s\n", oar_last_error_text());
}

static void print_devices(void)
{
    int count = oar_device_count(OAR_CUDA);

    printf("devices    cpu\n");
    if (count == 0 && oar_device_available(OAR_CUDA) != OAR_OK)
        printf("%-10s %-8s does not: %s\n", "", "cuda", oar_last_error_text());
    for (int i = 0; i < count; i++)
        print_gpu(i);
}

static void print_abilities(uint32_t can)
{
    static const struct {
        uint32_t bit;
        const char *name;
    } known[] = {
        { OAR_CAN_ANY, "wildcards" },
        { OAR_CAN_PROBE, "probe" },
        { OAR_CAN_SYNCHRONOUS, "synchronous sends" },
        { OAR_CAN_AT_MOST, "receives of at most a size" },
        { OAR_CAN_MEMORY, "memory of peers" },
    };
    const char *before = " [";

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (can & known[i].bit) {
            printf("%s%s", before, known[i].name);
            before = ", ";
        }
    printf("%s\n", before[0] == ',' ? "]" : "");
}

/* path: what it is found by, if not by its name. */
static void print_backend(const char *title, const char *name, const char *path)
{
    oar_backend_caps caps = oar_backend_caps_init();

    printf("%-10s %-11s ", title, name);
    if (oar_backend_available(path != NULL ? path : name, &caps) != OAR_OK) {
        printf("does not: %s\n", oar_last_error_text());
        return;
    }
    printf("works: %s", caps.note != NULL ? caps.note : "");
    print_abilities(caps.can);
}

/* In a child: a process can have one MPI only, and a plugin may do anything. */
static void print_apart(const char *title, const char *name, const char *path)
{
    pid_t child;
    int status = -1;

    fflush(NULL);
    if ((child = fork()) == 0) {
        print_backend(title, name, path);
        fflush(NULL);
        _exit(TOOL_OK);
    }
    if (child < 0 || waitpid(child, &status, 0) < 0 || status != 0)
        printf("%-10s %-11s does not: asking it ended with %d\n", title, name,
               status);
}

static void print_backends(void)
{
    static const char *const mpis[] = { "mpi-openmpi", "mpi-mpich" };
    const char *name;

    for (int i = 0; (name = oar_backend_name(i)) != NULL; i++) {
        const char *title = i == 0 ? "backends" : "";

        if (strcmp(name, "mpi") != 0)
            print_backend(title, name, NULL);
        for (int m = 0; strcmp(name, "mpi") == 0 && m < 2; m++)
            print_apart(title, mpis[m], NULL);
    }
}

/* NAME of "liboarsong-NAME.so"; 0: it is no such file. */
static int plugin_name(const char *file, char name[TEXT])
{
    static const char before[] = "liboarsong-", after[] = ".so";
    size_t bytes = strlen(file), ends = sizeof before + sizeof after - 2;

    if (bytes <= ends || bytes >= TEXT ||
        strncmp(file, before, sizeof before - 1) != 0 ||
        strcmp(file + bytes - (sizeof after - 1), after) != 0)
        return 0;
    snprintf(name, TEXT, "%.*s", (int)(bytes - ends), file + sizeof before - 1);
    return 1;
}

static void print_plugins_in(const char *folder, const char **title)
{
    struct dirent **file = NULL;
    int files = scandir(folder, &file, NULL, alphasort);
    char path[PATH_MAX], name[TEXT];

    if (files < 0)
        printf("%-10s %s: %s\n", *title, folder, strerror(errno));
    for (int i = 0; i < files; i++) {
        if (plugin_name(file[i]->d_name, name) &&
            snprintf(path, sizeof path, "%s/%s", folder, file[i]->d_name) <
                (int)sizeof path) {
            print_apart(*title, name, path);
            *title = "";
        }
        free(file[i]);
    }
    if (files < 0)
        *title = "";
    free(file);
}

/* Those of OARSONG_PLUGIN_PATH, in the order in which they are looked for. */
static void print_plugins(void)
{
    const char *list = getenv("OARSONG_PLUGIN_PATH"), *title = "plugins";
    char folder[PATH_MAX];

    while (list != NULL && *list != 0) {
        size_t bytes = strcspn(list, ":");
        if (bytes > 0 && bytes < sizeof folder) {
            snprintf(folder, sizeof folder, "%.*s", (int)bytes, list);
            print_plugins_in(folder, &title);
        }
        list += bytes + (list[bytes] == ':');
    }
}

/* One line a collective: the algorithms that do it. */
static void print_algorithms(void)
{
    const char *title = "algorithms";

    for (int k = 0; k < OAR_COLL_SEND; k++) {
        const char *name, *last = "";
        oar_coll kind;

        printf("%-10s %-14s", title, oar_coll_name((oar_coll)k));
        title = "";
        for (int i = 0; (name = oar_algorithm_name(i, &kind)) != NULL; i++)
            if ((int)kind == k && strcmp(name, last) != 0)
                printf(" %s", last = name);
        printf("\n");
    }
}

static void print_thresholds(void)
{
    char text[256];

    for (int i = 0; oar_threshold_text(i, text, sizeof text); i++)
        printf("%-10s %s\n", i == 0 ? "thresholds" : "", text);
}

/* Every variable that changes how the library runs, if it is set. */
static void print_environment(void)
{
    const char *title = "settings";

    for (char **at = environ; *at != NULL; at++)
        if (strncmp(*at, "OARSONG_", 8) == 0 &&
            strncmp(*at, "OARSONG_SECRET", 14) != 0) {
            printf("%-10s %s\n", title, *at);
            title = "";
        }
}

int tool_info(int argc, char **argv)
{
    if (argc > 1) {
        int help = strcmp(argv[1], "--help") == 0;
        fprintf(
            help ? stdout : stderr,
            "oarsong info\n\nPrints the version, the machine, which GPUs and "
            "backends work here and why others do\nnot, and the "
            "environment's settings.\n");
        return help ? TOOL_OK : TOOL_USAGE;
    }
    print_library();
    print_cpu();
    print_caches();
    print_memory();
    print_devices();
    print_backends();
    print_plugins();
    print_algorithms();
    print_thresholds();
    print_environment();
    return TOOL_OK;
}
