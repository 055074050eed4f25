"""Run programs one after the other in one job, and keep what each prints: examples_in_one_job.py FOLDER ...

Each folder has a train.py, which runs there as if it had been started so. What rank r prints goes to
FOLDER/r.txt; a rank of which a program fails says which one that was, and ends the job.
"""

import contextlib
import os
import runpy
import sys
from pathlib import Path

import hpcomm


def main(folders: list[str]) -> None:
    rank = hpcomm.world.rank
    for folder in folders:
        os.chdir(folder)
        sys.argv = ["train.py"]
        with Path(f"{rank}.txt").open("w", encoding="utf-8") as file:
            try:
                with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
                    runpy.run_path("train.py", run_name="__main__")
            except BaseException as error:
                if isinstance(error, SystemExit) and not error.code:
                    continue  # it ends here, as the workers of a pool do
                print(f"rank {rank} failed in {folder}", file=sys.stderr)
                raise
        if (torch := sys.modules.get("torch.distributed")) and torch.is_initialized():
            torch.destroy_process_group()


main([str(Path(folder).resolve()) for folder in sys.argv[1:]])
