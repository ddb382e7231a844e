# gloo: the real library.
if(off)
    oarsong_engine_left_out(gloo OARSONG_GLOO "${off}")
else()
    oarsong_engine_left_out(gloo OARSONG_GLOO "not written yet")
endif()
