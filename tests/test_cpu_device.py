"""`dnnkern.device` on the processor (`dnnkern.device.cpu`): the building blocks' own tests, as machine code in the tier of the processor.

What they compare with is NumPy or the simulator's twins. Those of errors that only the simulator finds are skipped, as on a GPU.
"""
import test_device_barrier
import test_device_block
import test_device_cluster
import test_device_convert
import test_device_cp_async
import test_device_epilogue
import test_device_fastmath
import test_device_groups
import test_device_index
import test_device_ldmatrix
import test_device_mbarrier
import test_device_mma
import test_device_philox
import test_device_pipeline
import test_device_pointwise
import test_device_program
import test_device_rows
import test_device_scheduler
import test_device_stmatrix
import test_device_tma
import test_device_tma_im2col
import test_device_typing
import test_device_vec
import test_device_warp
import test_device_wgmma
from test_device_wgmma import rng  # noqa: F401 (a fixture)

_MODULES = (test_device_barrier, test_device_block, test_device_cluster, test_device_convert, test_device_cp_async, test_device_epilogue,
            test_device_fastmath, test_device_groups, test_device_index, test_device_ldmatrix, test_device_mbarrier, test_device_mma,
            test_device_philox, test_device_pipeline, test_device_pointwise, test_device_program, test_device_rows,
            test_device_scheduler, test_device_stmatrix, test_device_tma, test_device_tma_im2col,
            test_device_typing, test_device_vec, test_device_warp, test_device_wgmma)
for _module in _MODULES:
    for _name, _test in vars(_module).items():
        if _name.startswith("test_"):
            _part = _module.__name__.removeprefix("test_device_")
            globals()[f"test_{_part}_{_name.removeprefix('test_')}"] = _test
