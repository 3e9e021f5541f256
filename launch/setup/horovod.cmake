# Horovod 0.28.1 uses std::logic_error without including its header, which the headers of GCC 13 and later do not include
# by chance any more.
set(CMAKE_CXX_FLAGS_INIT "-include stdexcept")
# CMake's RelWithDebInfo, which Horovod's setup.py asks for, without debug information: to write that takes a third of
# the compilers' time. Horovod's own CMakeLists.txt takes -O3 for -O2 in the default as well.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O3 -DNDEBUG" CACHE STRING "")
