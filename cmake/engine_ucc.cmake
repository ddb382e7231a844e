# ucc: the real library.
if(off)
    oarsong_engine_left_out(ucc OARSONG_UCC "${off}")
else()
    oarsong_engine_left_out(ucc OARSONG_UCC "not written yet")
endif()
