// SPDX-License-Identifier: Apache-2.0
// A C++17 or C++20 program that knows only the installed headers and library.
// It has a macro X of its own.
#define X 3
#include <oarsong/oarsong.h>
#include <cstdio>
static_assert(X == 3, "the headers leave the names of others alone");

static bool options_start_as_defaults()
{
    oar_linear_opts opts = oar_linear_opts_init();
    return opts.size == sizeof opts && opts.no_bias == 0 &&
           opts.dtype == OAR_F32;
}

static bool a_layer_without_bias_has_one_parameter()
{
    oar_linear_opts opts = oar_linear_opts_init();
    opts.no_bias = 1;
    oar_module *layer = nullptr;
    if (oar_linear_create(5, 2, 7, &opts, &layer) != OAR_OK)
        return false;
    const int params = oar_module_params(layer);
    const oar_shape shape = oar_tensor_shape(oar_module_param(layer, 0));
    oar_module_release(layer);
    return params == 1 && shape.ndim == 2 && shape.dim[0] == 2;
}

static bool numbers_that_are_const_can_be_sent()
{
    static const float numbers[] = { 1, 2, 3 };
    float got[3] = { 0, 0, 0 };
    oar_group *group = nullptr;
    oar_work *sent = nullptr;
    if (oar_group_create(nullptr, 0, 1, nullptr, &group) != OAR_OK)
        return false;
    oar_status status = oar_send(group, oar_span_of_const(numbers, 3, OAR_F32),
                                 0, 5, nullptr, &sent);
    if (status == OAR_OK)
        status = oar_recv(group, oar_span_of(got, 3, OAR_F32), 0, 5, nullptr,
                          nullptr);
    if (status == OAR_OK)
        status = oar_work_wait(sent);
    oar_work_release(sent);
    oar_group_destroy(group);
    return status == OAR_OK && got[2] == 3;
}

#if __cplusplus >= 202002L
static bool options_are_made_in_place()
{
    oar_module *layer = nullptr;
    if (oar_linear_create(5, 2, 7, OAR_OPTS(oar_linear_opts, .no_bias = 1),
                          &layer) != OAR_OK)
        return false;
    const int params = oar_module_params(layer);
    oar_module_release(layer);
    return params == 1;
}
#else
static bool options_are_made_in_place()
{
    return true; // C++17 has no names in initialisers
}
#endif

int main()
{
    if (oar_version() != OAR_VERSION_CODE || !options_start_as_defaults() ||
        !numbers_that_are_const_can_be_sent() || !options_are_made_in_place() ||
        !a_layer_without_bias_has_one_parameter()) {
        std::fprintf(stderr, "C++ consumer: %s\n", oar_last_error_text());
        return 1;
    }
    std::puts("C++ consumer: ok, " OAR_VERSION_TEXT);
    return 0;
}
