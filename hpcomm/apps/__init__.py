"""Programs to run and to read: `python -m hpcomm run -n 4 python -m hpcomm.apps.NAME`.

allreduce_demo  every kind of array, every dtype, every operator, checked; then the price next to mpi4py
p2p_ring        a token and arrays around a ring of ranks
softmax_demo    a softmax and a norm of a vector that no rank holds whole
stats_demo      mean, variance, quantiles and histogram of a table whose rows are spread over the ranks
groups_demo     ranks in smaller circles: who is where
heat2d          heat on a plate over a mesh: halos with overlap, checkpoints, a picture
fft_demo        a Fourier transform over ranks, in slabs and in pencils
matmul_demo     products of matrices that no rank holds whole
restart_demo    save on some ranks, restart on others
algorithms_demo every algorithm of every verb, checked, measured beside predicted
pingpong        latency and bandwidth between two ranks
gpu_demo        which ways arrays of a GPU take here, and how fast each is
overlap_demo    a long computation and a large transfer at once: what is saved

Each leaves with a status other than 0 when a result was wrong.
"""
