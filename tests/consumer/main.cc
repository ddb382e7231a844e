// SPDX-License-Identifier: Apache-2.0
// A C++17 program that knows only the installed headers and library.
#include <oarsong/oarsong.h>
#include <cstdio>

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

int main()
{
    if (oar_version() != OAR_VERSION_CODE || !options_start_as_defaults() ||
        !a_layer_without_bias_has_one_parameter()) {
        std::fprintf(stderr, "C++ consumer: %s\n", oar_last_error_text());
        return 1;
    }
    std::puts("C++ consumer: ok, " OAR_VERSION_TEXT);
    return 0;
}
