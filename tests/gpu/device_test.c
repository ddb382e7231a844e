/* SPDX-License-Identifier: Apache-2.0 */
/* What device.h promises: which GPUs there are, the errors where there is none,
 * streams and events. */
#include "support/gpu.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/last_error.h"

/* ---- without ------------------------------------------------------------- */

/* Every call that needs a driver says the same. */
static int all_are_unavailable(test_job *c, int rank, const char *text)
{
    oar_device_properties properties = oar_device_properties_init();
    oar_device_usage usage = oar_device_usage_init();
    void *made = &made;
    char byte = 0;

    RANK_CHECK(
        fails_with(oar_device_available(OAR_CUDA), OAR_E_UNAVAILABLE, text));
    RANK_CHECK(fails_with(oar_device_describe(gpu_at(0), &properties),
                          OAR_E_UNAVAILABLE, text));
    RANK_CHECK(
        fails_with(oar_device_set_current(gpu_at(0)), OAR_E_UNAVAILABLE, text));
    RANK_CHECK(fails_with(oar_device_alloc(gpu_at(0), 5, &made),
                          OAR_E_UNAVAILABLE, text));
    RANK_CHECK(fails_with(oar_device_memory(gpu_at(0), &usage),
                          OAR_E_UNAVAILABLE, text));
    RANK_CHECK(fails_with(oar_device_trim(gpu_at(0)), OAR_E_UNAVAILABLE, text));
    RANK_CHECK(fails_with(oar_pinned_alloc(5, &made), OAR_E_UNAVAILABLE, text));
    RANK_CHECK(fails_with(oar_device_copy(&byte, gpu_at(0), &byte,
                                          oar_device_of(OAR_CPU, 0), 1, NULL),
                          OAR_E_UNAVAILABLE, text));
    RANK_CHECK(fails_with(oar_stream_create(gpu_at(0), 0, &made),
                          OAR_E_UNAVAILABLE, text));
    RANK_CHECK(fails_with(oar_event_create(gpu_at(0), 0, &made),
                          OAR_E_UNAVAILABLE, text));
    RANK_CHECK(fails_with(oar_stream_synchronize(gpu_at(0), NULL),
                          OAR_E_UNAVAILABLE, text));
    RANK_CHECK(made == &made);
    return 0;
}

GPU_TEST(without_the_library_every_call_says_so)
{
    setenv("OARSONG_CUDA_LIBRARY", "/nonexistent/libcuda.so", 1);
    oar_clear_error();
    RANK_CHECK(oar_device_count(OAR_CUDA) == 0);
    RANK_CHECK(oar_last_error()->status ==
               OAR_OK); /* to count is not to fail */
    RANK_CHECK(oar_device_current().index == 0);
    return all_are_unavailable(c, rank, "/nonexistent/libcuda.so");
}

GPU_TEST(the_usual_library_is_looked_for_by_its_name)
{
    void *there = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    unsetenv("OARSONG_CUDA_LIBRARY");
    if (there == NULL)
        RANK_CHECK(fails_with(
            oar_device_available(OAR_CUDA), OAR_E_UNAVAILABLE,
            "libcuda.so.1 was not found: is NVIDIA's driver installed?"));
    else if (oar_device_available(OAR_CUDA) != OAR_OK)
        RANK_CHECK(strstr(oar_last_error_text(), "was not found") == NULL);
    return 0;
}

GPU_TEST(a_library_that_is_not_cuda_is_refused)
{
    setenv("OARSONG_CUDA_LIBRARY", "libm.so.6", 1);
    return all_are_unavailable(
        c, rank, "libm.so.6 has no cuInit: is it CUDA's driver library?");
}

GPU_TEST(a_driver_that_is_too_old_is_recognised)
{
    char path[4096];

    snprintf(path, sizeof path, "%s/tests/plugins/libold_cuda.so",
             getenv("OARSONG_BUILD_DIR"));
    setenv("OARSONG_CUDA_LIBRARY", path, 1);
    return all_are_unavailable(c, rank,
                               "has no cuGetErrorName: it is of CUDA 11.4, and "
                               "a newer driver is needed");
}

GPU_TEST(a_driver_without_a_gpu_says_so)
{
    gpu_set_devices(0);
    setenv("CUDA_VISIBLE_DEVICES", "-1", 1); /* for a real one */
    RANK_CHECK(oar_device_count(OAR_CUDA) == 0);
    RANK_ZERO(all_are_unavailable(c, rank, "is there, but finds no GPU"));
    gpu_set_devices(1);
    unsetenv("CUDA_VISIBLE_DEVICES");
    return all_are_unavailable(c, rank, "is there, but finds no GPU");
}

static int in_a_child(test_job *c, int rank, void *memory, void *stream)
{
    void *made = NULL;

    RANK_CHECK(fails_with(oar_device_available(OAR_CUDA), OAR_E_STATE, "fork"));
    RANK_CHECK(
        fails_with(oar_device_alloc(gpu_at(0), 5, &made), OAR_E_STATE, "fork"));
    RANK_CHECK(fails_with(oar_stream_synchronize(gpu_at(0), stream),
                          OAR_E_STATE, "fork"));
    RANK_CHECK(oar_device_count(OAR_CUDA) == 0);
    oar_device_free(gpu_at(0), memory, stream); /* does nothing */
    oar_stream_destroy(gpu_at(0), stream);
    oari_cuda_hold((uintptr_t)memory);
    oari_cuda_unhold((uintptr_t)memory);
    return 0;
}

GPU_TEST(a_child_by_fork_cannot_use_what_its_parent_has)
{
    void *memory = NULL, *stream = NULL;
    int how = 0;
    pid_t pid;

    RANK_OK(oar_device_alloc(gpu_at(0), 77, &memory));
    RANK_OK(oar_stream_create(gpu_at(0), 0, &stream));
    fflush(NULL);
    if ((pid = fork()) == 0)
        _exit(in_a_child(c, rank, memory, stream));
    RANK_CHECK(waitpid(pid, &how, 0) == pid && WIFEXITED(how));
    RANK_CHECK(WEXITSTATUS(how) == 0);
    RANK_OK(
        oar_stream_synchronize(gpu_at(0), stream)); /* the parent still can */
    oar_device_free(gpu_at(0), memory, stream);
    oar_stream_destroy(gpu_at(0), stream);
    return 0;
}

/* ---- which --------------------------------------------------------------- */

GPU_TEST(names_are_read_as_they_are_written)
{
    static const char *const wrong[] = { "",      "cuda:",   "cuda:x",
                                         "gpu",   "cuda:-1", "cuda:1 ",
                                         "cpu:0", "CPU",     "cuda:99999" };
    oar_device device = gpu_at(5);

    RANK_OK(oar_device_parse("cuda:17", &device));
    RANK_CHECK(device.kind == OAR_CUDA && device.index == 17);
    RANK_CHECK(strcmp(oar_device_text(device).text, "cuda:17") == 0);
    RANK_OK(oar_device_parse("cpu", &device));
    RANK_CHECK(device.kind == OAR_CPU && device.index == 0);
    RANK_CHECK(strcmp(oar_device_text(device).text, "cpu") == 0);
    RANK_CHECK(
        strcmp(oar_device_text(oar_device_of((oar_device_kind)7, 0)).text,
               "?") == 0);
    RANK_OK(oar_device_set_current(gpu_at(0)));
    RANK_OK(oar_device_parse("cuda", &device));
    RANK_CHECK(device.kind == OAR_CUDA && device.index == 0);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        RANK_CHECK(fails_with(oar_device_parse(wrong[i], &device), OAR_E_ARG,
                              "is not a device"));
    RANK_CHECK(oar_device_parse(NULL, &device) == OAR_E_ARG);
    RANK_CHECK(oar_device_parse("cpu", NULL) == OAR_E_ARG);
    return 0;
}

GPU_TEST(a_device_says_what_it_is)
{
    oar_device_properties p = oar_device_properties_init(), again = p, none = p;
    unsigned char zero[16] = { 0 };

    RANK_OK(oar_device_available(OAR_CUDA));
    RANK_CHECK(oar_device_count(OAR_CUDA) >= 1);
    RANK_OK(oar_device_describe(gpu_at(0), &p));
    RANK_CHECK(p.name[0] != 0 && p.bus[0] != 0 && p.major >= 5 &&
               p.processors > 0);
    RANK_CHECK(p.driver_version >= 11000 && p.memory_bytes >= p.free_bytes);
    RANK_CHECK(p.free_bytes > 0 && memcmp(p.uuid, zero, sizeof zero) != 0);
    again.size = offsetof(oar_device_properties, bus);
    RANK_OK(oar_device_describe(gpu_at(0), &again)); /* of older headers */
    RANK_CHECK(strcmp(again.name, p.name) == 0 && again.bus[0] == 0);
    none.size = 0;
    RANK_CHECK(oar_device_describe(gpu_at(0), &none) == OAR_E_ARG);
    RANK_CHECK(oar_device_describe(gpu_at(0), NULL) == OAR_E_ARG);
    return 0;
}

GPU_TEST(the_cpu_is_a_device_too)
{
    oar_device_properties p = oar_device_properties_init();
    oar_device cpu = oar_device_of(OAR_CPU, 0);
    oar_device_usage usage = oar_device_usage_init();
    void *memory = NULL;

    RANK_CHECK(oar_device_count(OAR_CPU) == 1);
    RANK_OK(oar_device_available(OAR_CPU));
    RANK_OK(oar_device_describe(cpu, &p));
    RANK_CHECK(strcmp(p.name, "cpu") == 0 && p.processors > 0 &&
               p.memory_bytes > 0);
    RANK_CHECK(fails_with(oar_device_describe(oar_device_of(OAR_CPU, 1), &p),
                          OAR_E_DEVICE, "there is no cpu 1"));
    RANK_OK(oar_device_alloc(cpu, 5, &memory));
    RANK_CHECK((uintptr_t)memory % 64 == 0);
    memset(memory, 7, 5);
    oar_device_free(cpu, memory, NULL);
    RANK_OK(oar_device_trim(cpu));
    RANK_CHECK(oar_device_memory(cpu, &usage) == OAR_E_DEVICE);
    RANK_CHECK(oar_device_count((oar_device_kind)7) == 0);
    RANK_CHECK(oar_device_available((oar_device_kind)7) == OAR_E_UNAVAILABLE);
    return 0;
}

/* A device that is not there, and the cpu where a GPU is asked for. */
static int is_refused(test_job *c, int rank, oar_device device,
                      const char *text)
{
    void *made = &made;
    int done = 5;
    double ms = 5;

    RANK_CHECK(
        fails_with(oar_stream_create(device, 0, &made), OAR_E_DEVICE, text));
    RANK_CHECK(
        fails_with(oar_stream_synchronize(device, NULL), OAR_E_DEVICE, text));
    RANK_CHECK(
        fails_with(oar_stream_query(device, NULL, &done), OAR_E_DEVICE, text));
    RANK_CHECK(
        fails_with(oar_stream_wait(device, NULL, &made), OAR_E_DEVICE, text));
    RANK_CHECK(
        fails_with(oar_stream_set_current(device, NULL), OAR_E_DEVICE, text));
    RANK_CHECK(oar_stream_current(device) == NULL);
    RANK_CHECK(
        fails_with(oar_event_create(device, 0, &made), OAR_E_DEVICE, text));
    RANK_CHECK(
        fails_with(oar_event_record(device, &made, NULL), OAR_E_DEVICE, text));
    RANK_CHECK(
        fails_with(oar_event_query(device, &made, &done), OAR_E_DEVICE, text));
    RANK_CHECK(
        fails_with(oar_event_synchronize(device, &made), OAR_E_DEVICE, text));
    RANK_CHECK(fails_with(oar_event_elapsed(device, &made, &made, &ms),
                          OAR_E_DEVICE, text));
    RANK_CHECK(fails_with(oar_device_set_current(device), OAR_E_DEVICE, text));
    RANK_CHECK(made == &made && done == 5 && ms == 5);
    oar_stream_destroy(device, NULL);
    oar_event_destroy(device, NULL);
    return 0;
}

GPU_TEST(a_wrong_device_is_refused)
{
    oar_device_properties p = oar_device_properties_init();
    oar_device beyond = gpu_at(oar_device_count(OAR_CUDA));
    void *made = &made;

    RANK_ZERO(is_refused(c, rank, beyond, "there is no cuda:"));
    RANK_ZERO(is_refused(c, rank, gpu_at(-1), "there is no cuda:-1"));
    RANK_ZERO(is_refused(c, rank, gpu_at(1 << 20), "there is no cuda:1048576"));
    RANK_ZERO(
        is_refused(c, rank, oar_device_of(OAR_CPU, 0), "cpu is not a GPU"));
    RANK_CHECK(oar_device_alloc(beyond, 5, &made) == OAR_E_DEVICE);
    RANK_CHECK(oar_device_describe(beyond, &p) == OAR_E_DEVICE);
    RANK_CHECK(oar_device_trim(beyond) == OAR_E_DEVICE);
    RANK_CHECK(oar_device_copy(&p, oar_device_of(OAR_CPU, 0), &p, gpu_at(-1), 1,
                               NULL) == OAR_E_DEVICE);
    RANK_CHECK(made == &made);
    return 0;
}

static void *read_current(void *arg)
{
    *(int *)arg = oar_device_current().index;
    return NULL;
}

GPU_TEST(the_current_device_is_a_threads_own)
{
    int count, elsewhere = -1;
    pthread_t thread;

    gpu_set_devices(3);
    setenv("LOCAL_RANK", "7", 1);
    count = oar_device_count(OAR_CUDA);
    RANK_CHECK(oar_device_current().kind == OAR_CUDA);
    RANK_CHECK(oar_device_current().index == 7 % count);
    RANK_OK(oar_device_set_current(gpu_at(count - 1)));
    RANK_CHECK(oar_device_current().index == count - 1);
    RANK_CHECK(pthread_create(&thread, NULL, read_current, &elsewhere) == 0);
    pthread_join(thread, NULL);
    RANK_CHECK(elsewhere == 7 % count);
    return 0;
}

GPU_TEST(a_local_rank_that_is_no_number_means_the_first)
{
    setenv("LOCAL_RANK", "seven", 1);
    oar_clear_error();
    RANK_CHECK(oar_device_current().index == 0);
    RANK_CHECK(oar_last_error()->status == OAR_OK);
    return 0;
}

/* ---- errors -------------------------------------------------------------- */

GPU_TEST(results_of_the_driver_become_sentences)
{
    const oari_cuda *cu = NULL;

    RANK_OK(oari_cuda_load(&cu));
    RANK_OK(oari_cuda_check(0, "do this"));
    RANK_CHECK(
        fails_with(oari_cuda_check(1, "do this"), OAR_E_GPU, "do this: "));
    RANK_CHECK(strstr(oar_last_error_text(), "CUDA_ERROR_INVALID_VALUE") !=
               NULL);
    RANK_CHECK(oari_cuda_check(OARI_CU_OUT_OF_MEMORY, "do this") ==
               OAR_E_NOMEM);
    RANK_CHECK(oari_cuda_check(OARI_CU_DEINITIALIZED, "so") ==
               OAR_E_UNAVAILABLE);
    RANK_CHECK(fails_with(oari_cuda_check(98765, "do this"), OAR_E_GPU,
                          "do this: CUDA error 98765"));
    return 0;
}

/* ---- streams and events -------------------------------------------------- */

GPU_TEST(a_stream_runs_in_its_order_and_can_be_asked)
{
    void *stream = NULL, *memory = NULL, *pinned = NULL;
    oar_device gpu = gpu_at(0), cpu = oar_device_of(OAR_CPU, 0);
    int done = 5;
    stream_gate g;

    RANK_OK(oar_stream_create(gpu, OAR_STREAM_URGENT, &stream));
    RANK_OK(oar_device_alloc(gpu, 11, &memory));
    RANK_OK(oar_pinned_alloc(11, &pinned));
    memset(pinned, 1, 11);
    RANK_OK(stream_gate_create(0, &g));
    RANK_OK(stream_gate_close(0, &g, stream));
    RANK_OK(oar_device_fill(oar_span_on(gpu, memory, 11, OAR_U8), 7, stream));
    RANK_OK(oar_device_copy(pinned, cpu, memory, gpu, 11, stream));
    RANK_OK(oar_stream_query(gpu, stream, &done));
    RANK_CHECK(done == 0 && ((char *)pinned)[10] == 1);
    stream_gate_open(&g);
    RANK_OK(oar_stream_synchronize(gpu, stream));
    RANK_OK(oar_stream_query(gpu, stream, &done));
    RANK_CHECK(done == 1 && ((char *)pinned)[0] == 7 &&
               ((char *)pinned)[10] == 7);
    oar_device_free(gpu, memory, stream);
    oar_pinned_free(pinned);
    oar_pinned_free(NULL);
    oar_stream_destroy(gpu, stream);
    return 0;
}

GPU_TEST(a_stream_waits_for_an_event_of_another)
{
    void *first = NULL, *second = NULL, *event = NULL;
    int done = 5;
    stream_gate g;

    RANK_OK(oar_stream_create(gpu_at(0), 0, &first));
    RANK_OK(oar_stream_create(gpu_at(0), 0, &second));
    RANK_OK(oar_event_create(gpu_at(0), 0, &event));
    RANK_OK(stream_gate_create(0, &g));
    RANK_OK(stream_gate_close(0, &g, first));
    RANK_OK(oar_event_record(gpu_at(0), event, first));
    RANK_OK(oar_stream_wait(gpu_at(0), second, event));
    RANK_OK(oar_event_query(gpu_at(0), event, &done));
    RANK_CHECK(done == 0);
    RANK_OK(oar_stream_query(gpu_at(0), second, &done));
    RANK_CHECK(done == 0);
    stream_gate_open(&g);
    RANK_OK(oar_event_synchronize(gpu_at(0), event));
    RANK_OK(oar_event_query(gpu_at(0), event, &done));
    RANK_CHECK(done == 1);
    RANK_CHECK(gpu_ends(0, second));
    oar_event_destroy(gpu_at(0), event);
    oar_stream_destroy(gpu_at(0), first);
    oar_stream_destroy(gpu_at(0), second);
    return 0;
}

GPU_TEST(timed_events_measure_and_others_do_not)
{
    void *from = NULL, *to = NULL, *untimed = NULL;
    double ms = -5;

    RANK_OK(oar_event_create(gpu_at(0), 1, &from));
    RANK_OK(oar_event_create(gpu_at(0), 1, &to));
    RANK_OK(oar_event_create(gpu_at(0), 0, &untimed));
    RANK_OK(oar_event_record(gpu_at(0), from, NULL));
    RANK_OK(oar_event_record(gpu_at(0), to, NULL));
    RANK_OK(oar_event_record(gpu_at(0), untimed, NULL));
    RANK_OK(oar_stream_synchronize(gpu_at(0), NULL));
    RANK_OK(oar_event_elapsed(gpu_at(0), from, to, &ms));
    RANK_CHECK(ms >= 0);
    ms = -5;
    RANK_CHECK(oar_event_elapsed(gpu_at(0), from, untimed, &ms) == OAR_E_GPU);
    RANK_CHECK(ms == -5);
    oar_event_destroy(gpu_at(0), from);
    oar_event_destroy(gpu_at(0), to);
    oar_event_destroy(gpu_at(0), untimed);
    return 0;
}

GPU_TEST(a_call_without_its_arguments_is_refused)
{
    oar_device gpu = gpu_at(0);
    void *made = &made;
    double ms = 0;

    RANK_CHECK(oar_stream_create(gpu, 0, NULL) == OAR_E_ARG);
    RANK_CHECK(fails_with(oar_stream_create(gpu, 6, &made), OAR_E_ARG,
                          "unknown flags"));
    RANK_CHECK(oar_stream_query(gpu, NULL, NULL) == OAR_E_ARG);
    RANK_CHECK(oar_stream_wait(gpu, NULL, NULL) == OAR_E_ARG);
    RANK_CHECK(oar_event_create(gpu, 0, NULL) == OAR_E_ARG);
    RANK_CHECK(oar_event_record(gpu, NULL, NULL) == OAR_E_ARG);
    RANK_CHECK(oar_event_query(gpu, NULL, NULL) == OAR_E_ARG);
    RANK_CHECK(oar_event_synchronize(gpu, NULL) == OAR_E_ARG);
    RANK_CHECK(oar_event_elapsed(gpu, NULL, NULL, &ms) == OAR_E_ARG);
    RANK_CHECK(oar_device_alloc(gpu, 5, NULL) == OAR_E_ARG);
    RANK_CHECK(oar_pinned_alloc(5, NULL) == OAR_E_ARG);
    RANK_CHECK(made == &made);
    return 0;
}

static void *read_stream(void *arg)
{
    *(void **)arg = oar_stream_current(gpu_at(0));
    return NULL;
}

GPU_TEST(the_current_stream_is_a_threads_own)
{
    void *stream = NULL, *elsewhere = &elsewhere;
    pthread_t thread;

    RANK_CHECK(oar_stream_current(gpu_at(0)) == NULL);
    RANK_OK(oar_stream_create(gpu_at(0), 0, &stream));
    RANK_OK(oar_stream_set_current(gpu_at(0), stream));
    RANK_CHECK(oar_stream_current(gpu_at(0)) == stream);
    RANK_CHECK(pthread_create(&thread, NULL, read_stream, &elsewhere) == 0);
    pthread_join(thread, NULL);
    RANK_CHECK(elsewhere == NULL);
    RANK_OK(oar_stream_set_current(gpu_at(0), NULL));
    RANK_CHECK(oar_stream_current(gpu_at(0)) == NULL);
    oar_stream_destroy(gpu_at(0), stream);
    return 0;
}

GPU_TEST(events_that_order_are_kept_for_the_next)
{
    oari_cu_event event[3], again = NULL;

    for (int i = 0; i < 3; i++)
        RANK_OK(oari_cuda_event_take(0, &event[i]));
    RANK_CHECK(event[0] != event[1] && event[1] != event[2]);
    oari_cuda_event_give(0, event[1]);
    RANK_OK(oari_cuda_event_take(0, &again));
    RANK_CHECK(again == event[1]);
    oari_cuda_event_give(0, NULL);
    for (int i = 0; i < 3; i++)
        oari_cuda_event_give(0, event[i]);
    RANK_CHECK(oari_cuda_event_take(77, &again) == OAR_E_DEVICE);
    return 0;
}

GPU_TEST(what_cannot_be_made_is_not)
{
    void *made = &made;

    RANK_OK(oar_device_available(OAR_CUDA));
    oar_memory_fail_after(1);
    RANK_CHECK(oar_stream_create(gpu_at(0), 0, &made) == OAR_E_NOMEM);
    oar_memory_fail_after(1);
    RANK_CHECK(oar_event_create(gpu_at(0), 0, &made) == OAR_E_NOMEM);
    oar_memory_fail_after(1);
    RANK_CHECK(oar_pinned_alloc(9, &made) == OAR_E_NOMEM);
    RANK_CHECK(made == &made);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_the_library_every_call_says_so),
        cmocka_unit_test(the_usual_library_is_looked_for_by_its_name),
        cmocka_unit_test(a_library_that_is_not_cuda_is_refused),
        cmocka_unit_test(a_driver_that_is_too_old_is_recognised),
        cmocka_unit_test(a_driver_without_a_gpu_says_so),
        cmocka_unit_test(a_child_by_fork_cannot_use_what_its_parent_has),
        cmocka_unit_test(names_are_read_as_they_are_written),
        cmocka_unit_test(a_device_says_what_it_is),
        cmocka_unit_test(the_cpu_is_a_device_too),
        cmocka_unit_test(a_wrong_device_is_refused),
        cmocka_unit_test(the_current_device_is_a_threads_own),
        cmocka_unit_test(a_local_rank_that_is_no_number_means_the_first),
        cmocka_unit_test(results_of_the_driver_become_sentences),
        cmocka_unit_test(a_stream_runs_in_its_order_and_can_be_asked),
        cmocka_unit_test(a_stream_waits_for_an_event_of_another),
        cmocka_unit_test(timed_events_measure_and_others_do_not),
        cmocka_unit_test(a_call_without_its_arguments_is_refused),
        cmocka_unit_test(the_current_stream_is_a_threads_own),
        cmocka_unit_test(events_that_order_are_kept_for_the_next),
        cmocka_unit_test(what_cannot_be_made_is_not),
    };

    gpu_begin();
    return cmocka_run_group_tests_name("device", tests, NULL, NULL);
}
