"""The heat equation on a square, in rows over the ranks: u_t = u_xx + u_yy + f, backward Euler, 5 points.

Chosen so that u = 1 + x² + 3y² + 1.2t solves the discrete problem too (the partitioned heat conduction of
preCICE's tutorials): what is wrong with the coupling cannot hide behind the discretisation.
"""

import numpy as np

ALPHA, BETA = 3.0, 1.2
SOURCE = BETA - 2.0 - 2.0 * ALPHA


def exact(x, y, t):
    return 1.0 + x**2 + ALPHA * y**2 + BETA * t


class Square:
    """[left, left + width] x [0, 1] with n meshes to a length of 1; the coupled side is at x = 1.

    Rows (y) are dealt out over the ranks of comm. On the coupled side either values are given
    (is_dirichlet) or the flux u_x. u has shape (rows here, columns + 1), from left to right.
    """

    def __init__(self, comm, left, n, is_dirichlet, width=1.0):
        self.comm, self.n, self.h, self.is_dirichlet = comm, n, 1.0 / n, is_dirichlet
        self.columns = columns = round(width * n)
        inner = np.array_split(np.arange(1, n), comm.size)[comm.rank]
        self.rows = inner  # the rows 0 and n lie on the boundary
        self.y = inner * self.h
        self.x = left + np.arange(columns + 1) * self.h
        self.side = columns if left == 0.0 else 0  # the column at x = 1
        self.t = 0.0
        self.u = exact(self.x, self.y[:, None], 0.0)
        self.free = np.ones(columns + 1, bool)  # that are solved for
        self.free[[0, columns]] = False
        self.free[self.side] = not is_dirichlet
        self.weight = np.ones(columns + 1)
        self.weight[self.side] = 0.5  # half a mesh at the coupled side

    def save(self):
        return self.t, self.u.copy()

    def restore(self, state):
        self.t, self.u = state[0], state[1].copy()

    def step(self, dt, given):
        """Advance by dt; given: values or flux at the coupled side at the new time, one per row here."""
        old, self.t = self.u, self.t + dt
        known = exact(self.x, self.y[:, None], self.t)  # right on the outer boundary
        if self.is_dirichlet:
            known[:, self.side] = given
        known[:, self.free] = 0.0
        right = self.weight * (old / dt + SOURCE)
        if not self.is_dirichlet:
            right[:, self.side] -= given / self.h
        right -= self.apply(known, dt, edges=True)
        self.u = known + self.solve(right * self.free, dt)

    def flux(self, dt, old):
        """u_x at the coupled side of a Dirichlet square, from the balance of its half meshes."""
        u, h = self.u, self.h
        up, down = self.neighbours(u, edges=True)
        u_yy = (up[:, self.side] - 2 * u[:, self.side] + down[:, self.side]) / h**2
        u_t = (u[:, self.side] - old[:, self.side]) / dt
        return (u[:, self.side] - u[:, self.side - 1]) / h + h / 2 * (u_t - u_yy - SOURCE)

    def apply(self, u, dt, edges=False):
        """(1/dt - u_xx - u_yy) u, weighted; edges: with the exact solution above and below, else zeros."""
        h2, w = self.h**2, self.weight
        up, down = self.neighbours(u, edges)
        made = w * (u / dt - (up - 2 * u + down) / h2)
        made[:, 1:] += (u[:, 1:] - u[:, :-1]) / h2
        made[:, :-1] += (u[:, :-1] - u[:, 1:]) / h2
        return made

    def neighbours(self, u, edges):
        """The rows above and below each row here."""
        comm, width = self.comm, self.columns + 1
        first = exact(self.x, 0.0, self.t) if edges else np.zeros(width)
        last = exact(self.x, 1.0, self.t) if edges else np.zeros(width)
        if comm.rank > 0:
            first = comm.sendrecv(u[0].copy(), comm.rank - 1, comm.rank - 1, out=np.empty(width))
        if comm.rank < comm.size - 1:
            last = comm.sendrecv(u[-1].copy(), comm.rank + 1, comm.rank + 1, out=np.empty(width))
        whole = np.vstack([first, u, last])
        return whole[2:], whole[:-2]

    def solve(self, right, dt):
        """Conjugate gradients; the matrix is symmetric and positive."""
        u, r = np.zeros_like(right), right.copy()
        p, square = r.copy(), self.comm.all_reduce(float(np.vdot(r, r)))
        goal = square * 1e-28
        for _ in range(10 * self.n**2):
            if square <= goal:
                break
            applied = self.apply(p, dt) * self.free
            along = square / self.comm.all_reduce(float(np.vdot(p, applied)))
            u += along * p
            r -= along * applied
            square, before = self.comm.all_reduce(float(np.vdot(r, r))), square
            p = r + square / before * p
        return u

    def error(self):
        """The largest difference from the exact solution."""
        worst = float(np.abs(self.u - exact(self.x, self.y[:, None], self.t)).max(initial=0.0))
        return self.comm.all_reduce(worst, "max")
