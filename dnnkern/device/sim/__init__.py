"""A CUDA device in Python: the second face of `dnnkern.device`."""
from .api import cuda
from .config import config
from .engine import STATS, current
from .errors import Deadlock, Misuse, Race, SimError
from .numba_plugin import install
from .pointer import Pointer
from .scalars import f32, f64, i8, i16, i32, i64, u8, u16, u32, u64

__all__ = ["Deadlock", "Misuse", "Pointer", "Race", "STATS", "SimError", "config", "cuda", "current", "f32", "f64", "i8", "i16", "i32",
           "i64", "install", "u8", "u16", "u32", "u64"]
