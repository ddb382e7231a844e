/* SPDX-License-Identifier: Apache-2.0 */
/* optim_cast: a module cast together with its optimizer, whose masters are the
 * numbers that its parameters had before. */
#include "base/alloc.h"
#include "base/dtype.h"
#include "base/status.h"
#include "optim/optim.h"
#include "tensor/tensor.h"

/* Of the optimizer's parameters. */
static oar_status check_param(const oar_optim *optim, int index,
                              oar_dtype dtype)
{
    const oari_optim_param *p = &optim->param[index];

    OARI_TRY(oari_check_present("optim_cast", index, p->tensor));
    if (p->master != NULL)
        return oari_fail(OAR_E_STATE,
                         "optim_cast to %s: parameter %d of %s is %s and has a "
                         "master",
                         oar_dtype_name(dtype), index, optim->kind->name,
                         oar_dtype_name(p->tensor->dtype));
    if (p->tensor->dtype == OAR_F64 || dtype == OAR_F64)
        return oari_fail(OAR_E_DTYPE,
                         "optim_cast of parameter %d from %s to %s: states in "
                         "f64 are not converted",
                         index, oar_dtype_name(p->tensor->dtype),
                         oar_dtype_name(dtype));
    return OAR_OK;
}

/* By the optimizer's parameters; NULL for those that will not need one. */
static oar_status make_masters(const oar_optim *optim, const oar_module *module,
                               oar_dtype dtype, oar_tensor **master)
{
    for (int i = 0; i < oar_module_params(module); i++) {
        oar_tensor *param = oar_module_param(module, i);
        int at = oari_optim_find(optim, param);

        if (at < 0 || master[at] != NULL || param->dtype == dtype)
            continue; /* not NULL: shared by two modules */
        OARI_TRY(check_param(optim, at, dtype));
        if (!optim->master_weights || !oari_dtype_is_half(dtype))
            continue;
        master[at] = oari_optim_make_master(param);
        if (master[at] == NULL)
            return oar_last_error()->status;
    }
    return OAR_OK;
}

oar_status oar_optim_cast(oar_optim *optim, oar_module *module, oar_dtype dtype,
                          int all)
{
    oar_tensor **master;
    oar_status status;

    if (optim == NULL || module == NULL)
        return oari_null("optim_cast");
    master = oari_alloc((size_t)optim->params + 1, sizeof *master);
    if (master == NULL)
        return OAR_E_NOMEM;
    status = make_masters(optim, module, dtype, master);
    if (status == OAR_OK)
        status = oar_module_cast(module, dtype, all);
    for (int i = 0; i < optim->params; i++) {
        oari_optim_param *p = &optim->param[i];

        if (status == OAR_OK && master[i] != NULL &&
            oari_dtype_is_half(p->tensor->dtype))
            status = oari_optim_set_master(optim, p, master[i]);
        else
            oar_tensor_release(master[i]);
    }
    oari_free(master);
    return status;
}
