! The rivers of the earth, on 2 x 2 degrees: each cell of land keeps its rain for 20 days on average.
! Takes rain on land, kg/(m2 s) of each cell. Gives what flows off, kg/s, which goes to the nearest sea.
! rivers LAST [FOLDER]: to the end of day LAST; goes on from what is in FOLDER, and saves there.
program rivers
  use hpcomm_mod
  implicit none
  integer, parameter :: nlat = 90, nlon = 180
  real(8), parameter :: pi = acos(-1.0d0), radius = 6.371d6, day = 86400.0d0, keeps = 20 * day
  integer :: comm, rank, size, land, rain, discharge, last, n = 0, j, file
  character(200) :: word, folder = "", name
  logical :: goes_on = .false.
  real(8) :: water(nlon, nlat) = 0, fallen(nlon, nlat) = 0, off(nlon, nlat) = 0, area(nlat), south
  real(8) :: gone = 0, all = 0                          ! kg: what the sea has got, and what has rained

  call get_command_argument(1, word)
  read (word, *) last
  call get_command_argument(2, folder)
  call get_environment_variable("HPCOMM_PROGRAM", name)
  if (folder /= "") inquire (file=trim(folder) // "/" // trim(name) // ".dat", exist=goes_on)
  call hpcomm_init(trim(name), comm, rank, size)
  land = hpcomm_grid_rectangle(nlat, nlon, 0, nlat, 0, nlon)
  rain = hpcomm_field("rain", hpcomm_takes, land)
  discharge = hpcomm_field("discharge", hpcomm_gives, land)
  do j = 1, nlat
    south = -pi / 2 + (j - 1) * pi / nlat
    area(j) = radius**2 * 2 * pi / nlon * (sin(south + pi / nlat) - sin(south))
  end do
  if (goes_on) then
    open (newunit=file, file=trim(folder) // "/" // trim(name) // ".dat", form="unformatted", status="old")
    read (file) n, water, off, gone, all
    close (file)
    call hpcomm_restore(trim(folder), n * day)
  else
    call hpcomm_connect(0.0d0)
    call hpcomm_put(discharge, off, 0.0d0)
  end if
  do while (n < last)
    gone = gone + day * sum(off)
    n = n + 1
    call hpcomm_get(rain, fallen, n * day)
    do j = 1, nlat
      water(:, j) = water(:, j) + day * area(j) * fallen(:, j)
      all = all + day * area(j) * sum(fallen(:, j))
    end do
    off = water / keeps
    water = water - day * off
    call hpcomm_put(discharge, off, n * day)
  end do
  print "(a, es16.9, a, es16.9, a)", "rivers: ", gone, " kg to the sea, of ", all, " kg of rain"
  if (folder /= "") then
    call hpcomm_save(trim(folder), n * day)
    open (newunit=file, file=trim(folder) // "/" // trim(name) // ".dat", form="unformatted")
    write (file) n, water, off, gone, all
    close (file)
  end if
  call hpcomm_end()
end program
