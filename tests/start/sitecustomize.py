"""In each Python of a run of the tests (run.py): torch loads, and ends, in two thirds of the time.

Collections during its import find nothing to free, nor do those at the exit. They leave aside what it
makes, as conftest.py has it in the tests' own processes. What a program makes later is collected as ever.
"""

import gc
import sys


class _Torch:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(_Torch)
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path)
        spec = next(filter(None, found), None)
        if spec is not None:
            load, is_on = spec.loader.exec_module, gc.isenabled()

            def exec_module(module):
                gc.disable()
                try:
                    load(module)
                    gc.freeze()
                finally:
                    if is_on:
                        gc.enable()

            spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Torch)
