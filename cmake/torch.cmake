# Target torch_ext::torch: headers and libraries of an installed torch, found by its folder. find_package(Torch) is no use here: it
# demands a CUDA toolkit as soon as torch is a CUDA build, as every wheel for Linux on PyPI is.
if(NOT TORCH_DIR)
  find_package(Python3 COMPONENTS Interpreter)
  if(Python3_FOUND)
    execute_process(
      COMMAND ${Python3_EXECUTABLE} -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0], end='')"
      OUTPUT_VARIABLE found_torch RESULT_VARIABLE failed ERROR_QUIET)
  endif()
  if(NOT Python3_FOUND OR failed)
    message(FATAL_ERROR "torch_ext found no torch: install it (pip install torch), or pass -DTORCH_DIR=<site-packages>/torch, "
                        "or -DTORCH_EXT_TORCH=OFF for the kernels alone.")
  endif()
  set(TORCH_DIR ${found_torch} CACHE PATH "" FORCE)
endif()
if(NOT EXISTS ${TORCH_DIR}/version.py OR NOT EXISTS ${TORCH_DIR}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "TORCH_DIR=${TORCH_DIR} is not the folder of an installed torch package.")
endif()
file(STRINGS ${TORCH_DIR}/version.py version_line REGEX "^__version__")
string(REGEX REPLACE ".*= *['\"]([^'\"]*)['\"].*" "\\1" TORCH_VERSION "${version_line}")
message(STATUS "torch ${TORCH_VERSION}: ${TORCH_DIR}")

add_library(torch_ext::torch INTERFACE IMPORTED)
target_include_directories(torch_ext::torch SYSTEM INTERFACE
  ${TORCH_DIR}/include ${TORCH_DIR}/include/torch/csrc/api/include)
target_link_libraries(torch_ext::torch INTERFACE ${TORCH_DIR}/lib/libtorch_cpu.so ${TORCH_DIR}/lib/libc10.so)

# OpenMP: compiled with -fopenmp, linked with torch's own copy of the runtime and no other, so that there is one pool of threads.
file(GLOB torch_openmp ${TORCH_DIR}/lib/libgomp*.so*)  # some wheels carry it under a hashed name
if(torch_openmp AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "The threads of the torch in ${TORCH_DIR} are those of GCC's OpenMP, which Clang does not compile for: set CXX=g++.")
endif()
target_compile_options(torch_ext::torch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
target_link_libraries(torch_ext::torch INTERFACE ${torch_openmp})
