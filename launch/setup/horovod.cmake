# CMake's RelWithDebInfo, which Horovod's setup.py asks for, without debug information: to write that takes a third of
# the compilers' time. Horovod's own CMakeLists.txt takes -O3 for -O2 in the default as well.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O3 -DNDEBUG" CACHE STRING "")
