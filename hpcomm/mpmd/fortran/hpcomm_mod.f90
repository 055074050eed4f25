! Couple a program in Fortran with others of its job: over hpcomm.h, whose comments say more.
!
!     call hpcomm_init("ocean", comm, rank, size)
!     grid = hpcomm_grid_rectangle(nlat, nlon, lat, nlats, lon, nlons)
!     sst = hpcomm_field("sst", hpcomm_gives, grid, kind=8)
!     call hpcomm_connect(0.0d0)
!     call hpcomm_put(sst, values, time)      ! real(4) or real(8), of rank 1, 2 or 3: points, then components
!     call hpcomm_end()
module hpcomm_mod
  use, intrinsic :: iso_c_binding
  implicit none
  private
  public :: hpcomm_init, hpcomm_link, hpcomm_grid, hpcomm_grid_rectangle, hpcomm_grid_points
  public :: hpcomm_grid_cells, hpcomm_field, hpcomm_connect, hpcomm_put, hpcomm_get, hpcomm_time, hpcomm_end
  public :: hpcomm_save, hpcomm_restore, hpcomm_put_kind, hpcomm_get_kind

  integer, parameter, public :: hpcomm_gives = 0, hpcomm_takes = 1

  interface
    subroutine c_init(name, comm, rank, size) bind(C, name="hpcomm_init_fortran")
      import :: c_char, c_int
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), intent(out) :: comm, rank, size
    end subroutine
    function c_link(peer) bind(C, name="hpcomm_link_fortran") result(comm)
      import :: c_char, c_int
      character(kind=c_char), intent(in) :: peer(*)
      integer(c_int) :: comm
    end function
    function c_grid(count, numbers) bind(C, name="hpcomm_grid") result(grid)
      import :: c_int, c_int64_t, c_long
      integer(c_long), value :: count
      integer(c_int64_t), intent(in) :: numbers(*)
      integer(c_int) :: grid
    end function
    function c_rectangle(nlat, nlon, lat, nlats, lon, nlons) bind(C, name="hpcomm_grid_rectangle") result(grid)
      import :: c_int, c_long
      integer(c_long), value :: nlat, nlon, lat, nlats, lon, nlons
      integer(c_int) :: grid
    end function
    function c_points(count, numbers, lonlat) bind(C, name="hpcomm_grid_points") result(grid)
      import :: c_double, c_int, c_int64_t, c_long
      integer(c_long), value :: count
      integer(c_int64_t), intent(in) :: numbers(*)
      real(c_double), intent(in) :: lonlat(*)
      integer(c_int) :: grid
    end function
    function c_cells(count, numbers, corners, lonlat) bind(C, name="hpcomm_grid_cells") result(grid)
      import :: c_double, c_int, c_int64_t, c_long
      integer(c_long), value :: count
      integer(c_int64_t), intent(in) :: numbers(*)
      integer(c_int), value :: corners
      real(c_double), intent(in) :: lonlat(*)
      integer(c_int) :: grid
    end function
    function c_field(name, role, grid, kind, width) bind(C, name="hpcomm_field_by_component") result(field)
      import :: c_char, c_int
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), value :: role, grid, kind, width
      integer(c_int) :: field
    end function
    subroutine hpcomm_connect(start) bind(C, name="hpcomm_connect")
      import :: c_double
      real(c_double), value :: start
    end subroutine
    ! Arrays of any rank; kind: 4 or 8; count: of their numbers, size(values, kind=c_long).
    subroutine hpcomm_put_kind(field, values, kind, count, time) bind(C, name="hpcomm_put_kind")
      import :: c_double, c_int, c_long
      integer(c_int), value :: field, kind
      type(*), intent(in) :: values(*)
      integer(c_long), value :: count
      real(c_double), value :: time
    end subroutine
    subroutine hpcomm_get_kind(field, values, kind, count, time) bind(C, name="hpcomm_get_kind")
      import :: c_double, c_int, c_long
      integer(c_int), value :: field, kind
      type(*), intent(in out) :: values(*)
      integer(c_long), value :: count
      real(c_double), value :: time
    end subroutine
    function hpcomm_time(field) bind(C, name="hpcomm_time") result(time)
      import :: c_double, c_int
      integer(c_int), value :: field
      real(c_double) :: time
    end function
    subroutine c_save(path, time) bind(C, name="hpcomm_save")
      import :: c_char, c_double
      character(kind=c_char), intent(in) :: path(*)
      real(c_double), value :: time
    end subroutine
    subroutine c_restore(path, time) bind(C, name="hpcomm_restore")
      import :: c_char, c_double
      character(kind=c_char), intent(in) :: path(*)
      real(c_double), value :: time
    end subroutine
    subroutine hpcomm_end() bind(C, name="hpcomm_end")
    end subroutine
  end interface

  interface hpcomm_put
    procedure put_4_1, put_4_2, put_4_3, put_8_1, put_8_2, put_8_3
  end interface
  interface hpcomm_get
    procedure get_4_1, get_4_2, get_4_3, get_8_1, get_8_2, get_8_3
  end interface

contains

  ! comm: of this program's ranks, as `use mpi` has communicators. name: "" for the one in the spec.
  subroutine hpcomm_init(name, comm, rank, size)
    character(*), intent(in) :: name
    integer, intent(out) :: comm
    integer, intent(out), optional :: rank, size
    integer(c_int) :: mine, all
    call c_init(trim(name) // c_null_char, comm, mine, all)
    if (present(rank)) rank = mine
    if (present(size)) size = all
  end subroutine

  integer function hpcomm_link(peer)
    character(*), intent(in) :: peer
    hpcomm_link = c_link(trim(peer) // c_null_char)
  end function

  subroutine hpcomm_save(path, time)
    character(*), intent(in) :: path
    real(c_double), intent(in) :: time
    call c_save(trim(path) // c_null_char, time)
  end subroutine

  subroutine hpcomm_restore(path, time)
    character(*), intent(in) :: path
    real(c_double), intent(in) :: time
    call c_restore(trim(path) // c_null_char, time)
  end subroutine

  ! numbers: the global ones of this rank's points, from 0 as in Python.
  integer function hpcomm_grid(numbers)
    integer(c_int64_t), intent(in) :: numbers(:)
    hpcomm_grid = c_grid(size(numbers, kind=c_long), numbers)
  end function

  ! Columns lon .. lon + nlons - 1 (from 0) of rows lat .. lat + nlats - 1: values(nlons, nlats).
  integer function hpcomm_grid_rectangle(nlat, nlon, lat, nlats, lon, nlons)
    integer, intent(in) :: nlat, nlon, lat, nlats, lon, nlons
    hpcomm_grid_rectangle = c_rectangle(int(nlat, c_long), int(nlon, c_long), int(lat, c_long), &
                                        int(nlats, c_long), int(lon, c_long), int(nlons, c_long))
  end function

  ! lonlat(2, points): degrees.
  integer function hpcomm_grid_points(numbers, lonlat)
    integer(c_int64_t), intent(in) :: numbers(:)
    real(c_double), intent(in) :: lonlat(:, :)
    call check_coordinates(size(lonlat), 2 * size(numbers))
    hpcomm_grid_points = c_points(size(numbers, kind=c_long), numbers, lonlat)
  end function

  ! lonlat(2, corners, cells): degrees.
  integer function hpcomm_grid_cells(numbers, lonlat)
    integer(c_int64_t), intent(in) :: numbers(:)
    real(c_double), intent(in) :: lonlat(:, :, :)
    call check_coordinates(size(lonlat), 2 * size(lonlat, 2) * size(numbers))
    hpcomm_grid_cells = c_cells(size(numbers, kind=c_long), numbers, size(lonlat, 2), lonlat)
  end function

  subroutine check_coordinates(count, wanted)
    integer, intent(in) :: count, wanted
    integer :: nothing
    if (count /= wanted) nothing = c_grid(-1_c_long, [0_c_int64_t]) ! which says it, and ends the job
  end subroutine

  ! kind: 4 or 8 (the default); width: numbers per point.
  integer function hpcomm_field(name, role, grid, kind, width)
    character(*), intent(in) :: name
    integer, intent(in) :: role, grid
    integer, intent(in), optional :: kind, width
    integer :: bytes, wide
    bytes = 8
    wide = 1
    if (present(kind)) bytes = kind
    if (present(width)) wide = width
    hpcomm_field = c_field(trim(name) // c_null_char, role, grid, bytes, wide)
  end function

  subroutine put_4_1(field, values, time)
    integer, intent(in) :: field
    real(c_float), intent(in) :: values(:)
    real(c_double), intent(in) :: time
    call hpcomm_put_kind(field, values, 4, size(values, kind=c_long), time)
  end subroutine

  subroutine put_4_2(field, values, time)
    integer, intent(in) :: field
    real(c_float), intent(in) :: values(:, :)
    real(c_double), intent(in) :: time
    call hpcomm_put_kind(field, values, 4, size(values, kind=c_long), time)
  end subroutine

  subroutine put_4_3(field, values, time)
    integer, intent(in) :: field
    real(c_float), intent(in) :: values(:, :, :)
    real(c_double), intent(in) :: time
    call hpcomm_put_kind(field, values, 4, size(values, kind=c_long), time)
  end subroutine

  subroutine put_8_1(field, values, time)
    integer, intent(in) :: field
    real(c_double), intent(in) :: values(:)
    real(c_double), intent(in) :: time
    call hpcomm_put_kind(field, values, 8, size(values, kind=c_long), time)
  end subroutine

  subroutine put_8_2(field, values, time)
    integer, intent(in) :: field
    real(c_double), intent(in) :: values(:, :)
    real(c_double), intent(in) :: time
    call hpcomm_put_kind(field, values, 8, size(values, kind=c_long), time)
  end subroutine

  subroutine put_8_3(field, values, time)
    integer, intent(in) :: field
    real(c_double), intent(in) :: values(:, :, :)
    real(c_double), intent(in) :: time
    call hpcomm_put_kind(field, values, 8, size(values, kind=c_long), time)
  end subroutine

  subroutine get_4_1(field, values, time)
    integer, intent(in) :: field
    real(c_float), intent(in out) :: values(:)
    real(c_double), intent(in) :: time
    call hpcomm_get_kind(field, values, 4, size(values, kind=c_long), time)
  end subroutine

  subroutine get_4_2(field, values, time)
    integer, intent(in) :: field
    real(c_float), intent(in out) :: values(:, :)
    real(c_double), intent(in) :: time
    call hpcomm_get_kind(field, values, 4, size(values, kind=c_long), time)
  end subroutine

  subroutine get_4_3(field, values, time)
    integer, intent(in) :: field
    real(c_float), intent(in out) :: values(:, :, :)
    real(c_double), intent(in) :: time
    call hpcomm_get_kind(field, values, 4, size(values, kind=c_long), time)
  end subroutine

  subroutine get_8_1(field, values, time)
    integer, intent(in) :: field
    real(c_double), intent(in out) :: values(:)
    real(c_double), intent(in) :: time
    call hpcomm_get_kind(field, values, 8, size(values, kind=c_long), time)
  end subroutine

  subroutine get_8_2(field, values, time)
    integer, intent(in) :: field
    real(c_double), intent(in out) :: values(:, :)
    real(c_double), intent(in) :: time
    call hpcomm_get_kind(field, values, 8, size(values, kind=c_long), time)
  end subroutine

  subroutine get_8_3(field, values, time)
    integer, intent(in) :: field
    real(c_double), intent(in out) :: values(:, :, :)
    real(c_double), intent(in) :: time
    call hpcomm_get_kind(field, values, 8, size(values, kind=c_long), time)
  end subroutine

end module
