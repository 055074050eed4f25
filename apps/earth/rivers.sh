#!/bin/sh
# Builds the rivers by this job's mpicc and gfortran, and runs them: sh rivers.sh LAST [FOLDER]
set -e
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
sources=$(python -m hpcomm fortran --path)
here=$PWD
cd "$build"
mpicc -O2 -c "$sources/hpcomm.c"
gfortran -O2 -c "$sources/hpcomm_mod.f90" "$here/rivers.f90"
mpicc -o rivers rivers.o hpcomm_mod.o hpcomm.o -lgfortran -lm
cd "$here"
"$build/rivers" "$@"
