"""Limits of waiting and of sizes in the calls of ranks. Each section names what chose its numbers.

Numbers are of the machines on which those benchmarks ran; their files are under benchmarks/results/. Names
in _S are seconds. What a format or MPI sets, such as the largest count, stands where it is used; so do the
deadlines of launching and coupling, which are below this layer (job/) or a program's own (mpmd/).
"""

from __future__ import annotations

# Waiting in shared memory.
# Chosen by benchmarks/overhead.py, on 2 ranks with a core each, and on 4 and 8 on two cores.
NODE_SPINS = 2000  # looks of the native core at a word before its waits get slow, some microseconds

# Waiting for MPI in the background.
# Chosen by benchmarks/overhead.py, rows of requests.
PROGRESS_LOOK_S = 5e-4  # between two looks whether anybody waits
PAUSE_YIELDS = 1000  # looks at requests without a pause
REQUEST_PAUSE_S = 1e-5  # of a thread between two looks whether another one has the message
WORKER_POLL_S = 2e-4  # between looks at messages that nobody waits for

# Who has ended, who is silent: what a person can wait for, and what a look costs the others.
# Chosen by tests/mpi_jobs/test_deadlines.py, tests/mpi_jobs/test_endings.py; no benchmark.
WATCHDOG_TICK_S = 0.2  # between looks of the watchdog
REPORT_S = 30.0  # of waiting in one call, until that is said
WATCHDOG_AFTER_S = 2.0  # that others wait longer, so that one says it
SILENT_S = 15.0  # after which a host that does not answer is worth a word
HEARTBEAT_S = 2.0  # between two messages to the next host
DESCRIPTION_S = 3.0  # that a rank waits for another's description of its call
REFUSAL_S = 0.5  # that a rank which refuses a call waits for the others, until it says so
GRACE_S = 1.0  # in which the other ranks may end too, when one has failed
EXIT_S = 3.0  # in which the threads and the exit handlers of a rank that fails may end
WORK_LOOK_S = 0.05  # between looks of a torch call whether a peer still lives
NETWORK_PATIENCE_S = 2.0  # for a call that a rank which has ended may have left in good order

# New results: bytes.
# Results of 16 and 64 MiB in such memory take about as long as with out= (benchmarks/node_core.py, "new").
RESULT_LARGE = 4 << 20  # of a result whose memory is used again
RESULT_KEPT = 512 << 20  # of memory that nobody uses and a process keeps

# Receives: bytes.
# Chosen by benchmarks/guard.py.
GUARD_PROBED = 8 << 10  # from which a message is probed before a blocking receive
GUARD_LEFT = 64 << 10  # from which other receives are left as they are

# Objects: bytes.
# Chosen by benchmarks/overhead.py --objects.
OUT_OF_BAND = 2048  # from which an array is not copied into the pickle
HEADER = 1024  # of a header in collectives
EAGER_OBJECT = 32 * 1024  # of an object that travels with its header: it is copied once on either side

# Halos and other planned exchanges: bytes.
# Chosen by benchmarks/halo.py, benchmarks/redistribute.py.
CHANNEL_MOST = 1 << 20  # of a message that goes through a channel of the node; above, MPI copies once only
VIEW_ALONE = 32 << 10  # of a view that is worth a message of its own
VIEWS_ALONE = 4  # messages that cost less than the handshake before a longer one
COPIED_BY_PYTHON = 64 << 10  # up to which it matters who copies
STARTED_ALONE = 8  # requests up to which starting each is quicker than all from a list

# Reductions in the order of ranks: bytes.
ORDER_GATHERED = 1 << 20  # of all ranks' arrays together, up to which everybody gets them whole
ORDER_GATHERED_FAR = 256 << 10  # the same of ranks of several nodes
ORDER_ALONE_FAR = 48 << 10  # of one rank's array, from which it does not: links carry the least then
ORDER_BACKGROUND = 256 << 20  # the same where nothing else keeps the order of ranks (rank_order.py)
ORDER_EXCHANGED = 64 << 10  # what all nodes have, up to which each of them hears all others'
ORDER_TO_ROOT = 256 << 10  # what other nodes have for a root, up to which each sends it as one message
ORDER_KEPT = 256 << 10  # of x, up to which memory and requests are kept for the next call like it
ORDER_PIECE = 4 << 20  # of x, of which each rank reduces a part at a time
GATHERED_FAR = 256 << 10  # of an all_gather's result, from which hpcomm moves it between nodes under MPICH
GATHERED_RANKS = 128  # up to which: a block goes to all nodes at once
ORDER_PREFIX = 128 << 10  # of x, of which a prefix goes from rank to rank at a time

# Half types and own schedules: bytes.
# Chosen by benchmarks/overhead.py; benchmarks/tuned.py.
TORCH_CUT = 8 * 1024 * 1024  # past which MPI would touch a fresh temporary on every call
TORCH_CUT_PIECE = 4 * 1024 * 1024  # of a piece then
TORCH_LIST_COPIED = 64 * 1024  # up to which tensors of a list are copied into one
BACKGROUND_COPIED = 64 << 10  # of a call in the background that are copied into place
SCHEDULE_IN_OUT = 256 << 10  # of x per rank from which all_reduce works in `out`
SCHEDULE_RING = 64 << 10  # for each rank from which a ring is better than a tree (not measured on GPUs)
SCHEDULE_PIECE = 256 * 1024  # that one piece of a pipeline should have about

# Device memory: bytes.
# Guesses made before there was a GPU to try; benchmarks/gpu.py shows what they give.
DEVICE_EAGER = 1 << 20  # of a rank's block up to which a call is staged whole: one call of the core or of MPI
HOST_COPY_PIECE = 4 << 20  # of pinned memory that a piece takes
PIPELINE_PIECE = 1 << 20  # of pinned memory that a piece of a message takes
PINNED_KEPT = 64 << 20  # of pinned memory that a process keeps for later, per device
IPC_SLOT = 4 << 20  # of a slot of device memory that others open
IPC_DIRECT = 16 << 20  # from which an array is worth opening itself
WORKSPACE = 32 << 20  # of device memory for collectives
