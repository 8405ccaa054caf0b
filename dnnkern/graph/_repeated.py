"""Calls of a plan that are like an earlier one: their arrays are compared in one call of C, and what was looked at then is launched."""
from ..host.guards import make_guard

_REMEMBERED = 256  # addresses that have been looked at


class Repeated:
    """Calls of a plan whose values are addresses alone.

    By arrays they are those whose packs have as many buffers as one before, under the same keys, tensors of PyTorch that are what they
    were, but for where they lie. Which addresses may be launched was looked at when they came first.

    Parameters
    ----------
    executable : Executable
    order : tuple of int
        Which of the buffers each of its values is.
    device : int
    workspace : bool
        Whether the address of one is the last value.
    """

    def __init__(self, executable, order, device, workspace):
        self.executable, self.order, self.device, self.workspace = executable, order, device, workspace
        self.known = {}  # {addresses of the buffers, and of the workspace: values}
        self.keys, self.size, self.guard, self.current = (), -1, None, None
        self.misses, self.patience = 0, 1

    def remember(self, addresses):
        """They may be launched."""
        if len(self.known) >= _REMEMBERED:
            self.known.clear()
        self.known[addresses] = (*[addresses[k] for k in self.order], *addresses[len(addresses) - self.workspace:])

    def is_worth_learning(self):
        """Whether another form shall be learned; the more often it changed, the less."""
        self.misses += 1
        if self.misses < self.patience:
            return False
        self.misses, self.patience = 0, min(2 * self.patience, 1024)
        return True

    def learn(self, size, keys, tensors, current):
        """From now on calls are of this form: packs of so many, the buffers under these keys, like the tensors, of which the last is the
        workspace, if there is one; ``current(device)`` is the framework's stream."""
        guard = make_guard(tensors)
        if guard is not None:
            self.size, self.keys, self.guard, self.current = -1, keys, guard, current
            self.size = size

    def launch(self, pack, workspace, stream):
        """Whether a pack was at addresses that are known, and is launched; None where it is not of this form."""
        if len(pack) != self.size:
            return None
        try:
            arrays = [pack[key] for key in self.keys]
        except KeyError:
            return None
        if self.workspace:
            arrays.append(workspace)
        if not self.guard(*arrays):
            return None
        return self.launch_at(tuple([a.data_ptr() for a in arrays]), self.current(self.device) if stream is None else stream)

    def launch_at(self, addresses, stream):
        """Whether they are known, and are launched."""
        values = self.known.get(addresses)
        if values is None:
            return False
        self.executable.again(values, stream)
        return True
