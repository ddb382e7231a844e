/* SPDX-License-Identifier: Apache-2.0 */
/* mpi_types: MPI's datatypes for ours. */
#include "backends/mpi/mpi_engine.h"

enum { BLOCK = 1 << 20 /* elements */ };

MPI_Datatype mpi_type_of(oar_dtype dtype)
{
    switch (oar_dtype_size(dtype)) {
    case 1: return MPI_UINT8_T;
    case 2: return MPI_UINT16_T;
    case 4: return MPI_UINT32_T;
    default: return MPI_UINT64_T;
    }
}

/* A struct of whole blocks, and the rest after them. */
int mpi_make_row_type(size_t count, MPI_Datatype element, MPI_Datatype *row)
{
    int lengths[2] = { (int)(count / BLOCK), (int)(count % BLOCK) };
    MPI_Datatype types[2] = { MPI_DATATYPE_NULL, element };
    MPI_Aint at[2] = { 0, 0 }, low, extent;
    int code = MPI_Type_contiguous(BLOCK, element, &types[0]);

    if (code != MPI_SUCCESS)
        return code;
    code = MPI_Type_get_extent(element, &low, &extent);
    if (code == MPI_SUCCESS) {
        at[1] = (MPI_Aint)(count - (size_t)lengths[1]) * extent;
        code = MPI_Type_create_struct(2, lengths, at, types, row);
    }
    MPI_Type_free(&types[0]);
    return code == MPI_SUCCESS ? MPI_Type_commit(row) : code;
}
