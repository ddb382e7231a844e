# mpi: twice, once for each MPI there is.
foreach(flavour openmpi mpich)
    if(off)
        oarsong_engine_left_out(mpi-${flavour} OARSONG_MPI "${off}")
    else()
        oarsong_engine_left_out(mpi-${flavour} OARSONG_MPI "not written yet")
    endif()
endforeach()
