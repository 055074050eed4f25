# For find_package(hpcomm 0.1): the version is that of hpcomm.pc; while it is 0.x, another x is another interface.
include(CMakePackageConfigHelpers)
file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/hpcomm.pc" _version REGEX "^Version: ")
string(REPLACE "Version: " "" _version "${_version}")
set(_file "${CMAKE_CURRENT_BINARY_DIR}/hpcomm-version.cmake")
write_basic_package_version_file("${_file}" VERSION "${_version}" COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
include("${_file}")
