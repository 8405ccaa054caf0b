"""``attn_implementation="dnnkern"``: told to transformers as soon as a program has imported it."""
import contextlib
import importlib
import importlib.abc
import importlib.util
import sys

NAME = "dnnkern"
_WHERE = "transformers.modeling_utils"  # all models import it


class _WithTransformers(importlib.abc.MetaPathFinder):
    """Registers after that module has been loaded."""
    asking = False

    def find_spec(self, name, path, target=None):
        if name != _WHERE or self.asking:
            return None
        self.asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.asking = False
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = self.after(spec.loader.exec_module)
        return spec

    def after(self, load):
        def exec_module(module):
            load(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            with contextlib.suppress(ImportError, KeyError):  # of a version without these: it knows no "dnnkern" then, and says so
                register()
        return exec_module


def register():
    """Tell transformers of our attention, and that its masks are those of its "sdpa": None or bool, True where a query attends."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def _attention(*args, **more):
    return importlib.import_module("._transformers", __package__).attention(*args, **more)  # when it is first needed


def follow():
    """Register now, if transformers is imported, or else when it is."""
    if _WHERE in sys.modules:
        with contextlib.suppress(ImportError, KeyError):
            register()
    else:
        sys.meta_path.insert(0, _WithTransformers())
