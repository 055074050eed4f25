# For CMake: find_package(hpcomm REQUIRED), with hpcomm_DIR from `python -m hpcomm fortran --path`.
#
#     hpcomm::c        hpcomm.h, and hpcomm.c, compiled by the project's own compiler; links MPI::MPI_C
#     hpcomm::fortran  the module hpcomm_mod over it, where the project's languages have Fortran
if(NOT CMAKE_C_COMPILER_LOADED)
  set(hpcomm_FOUND FALSE)
  set(hpcomm_NOT_FOUND_MESSAGE "hpcomm is compiled from C: project(... LANGUAGES C ...)")
  return()
endif()
include(CMakeFindDependencyMacro)
find_dependency(MPI COMPONENTS C)

if(NOT TARGET hpcomm_c)
  add_library(hpcomm_c STATIC EXCLUDE_FROM_ALL "${CMAKE_CURRENT_LIST_DIR}/hpcomm.c")
  set_target_properties(hpcomm_c PROPERTIES C_STANDARD 11 POSITION_INDEPENDENT_CODE ON)
  target_include_directories(hpcomm_c PUBLIC "${CMAKE_CURRENT_LIST_DIR}")
  target_link_libraries(hpcomm_c PUBLIC MPI::MPI_C m)
  add_library(hpcomm::c ALIAS hpcomm_c)
endif()
if(CMAKE_Fortran_COMPILER_LOADED AND NOT TARGET hpcomm_fortran)
  set(_modules "${CMAKE_CURRENT_BINARY_DIR}/hpcomm_modules")
  add_library(hpcomm_fortran STATIC EXCLUDE_FROM_ALL "${CMAKE_CURRENT_LIST_DIR}/hpcomm_mod.f90")
  set_target_properties(hpcomm_fortran PROPERTIES Fortran_MODULE_DIRECTORY "${_modules}" POSITION_INDEPENDENT_CODE ON)
  target_include_directories(hpcomm_fortran PUBLIC "${_modules}")
  target_link_libraries(hpcomm_fortran PUBLIC hpcomm_c)
  add_library(hpcomm::fortran ALIAS hpcomm_fortran)
endif()
