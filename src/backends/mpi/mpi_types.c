/* SPDX-License-Identifier: Apache-2.0 */
/* mpi_types: MPI's datatypes for ours. */
#include "backends/mpi/mpi_engine.h"

enum { PIECE = 1 << 20 /* elements */ };

MPI_Datatype mpi_plain(oar_dtype dtype)
{
    switch (oar_dtype_size(dtype)) {
    case 1: return MPI_UINT8_T;
    case 2: return MPI_UINT16_T;
    case 4: return MPI_UINT32_T;
    default: return MPI_UINT64_T;
    }
}

/* So many pieces, and the rest behind them. */
static int join_parts(size_t count, MPI_Datatype piece, MPI_Datatype element,
                      MPI_Datatype *row)
{
    int lengths[2] = { (int)(count / PIECE), (int)(count % PIECE) };
    MPI_Datatype types[2] = { piece, element };
    MPI_Aint at[2] = { 0, 0 }, low, extent;
    int code = MPI_Type_get_extent(element, &low, &extent);

    at[1] = (MPI_Aint)(count - (size_t)lengths[1]) * extent;
    if (code == MPI_SUCCESS)
        code = MPI_Type_create_struct(2, lengths, at, types, row);
    return code;
}

int mpi_row_type(size_t count, MPI_Datatype element, MPI_Datatype *row)
{
    MPI_Datatype piece;
    int code = MPI_Type_contiguous(PIECE, element, &piece);

    if (code != MPI_SUCCESS)
        return code;
    code = join_parts(count, piece, element, row);
    MPI_Type_free(&piece);
    return code == MPI_SUCCESS ? MPI_Type_commit(row) : code;
}
