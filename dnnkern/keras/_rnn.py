"""Recurrent layers: Keras runs them step by step, except on a GPU with cuDNN."""
import torch
from keras.src import activations, tree
from keras.src.layers import GRU, LSTM, GRUCell, LSTMCell, SimpleRNN, SimpleRNNCell

from ._replace import replaces
from ._tensors import not_floating, value

_CELLS = {LSTM: LSTMCell, GRU: GRUCell, SimpleRNN: SimpleRNNCell}
_RNN = {activations.tanh: torch.rnn_tanh, activations.relu: torch.rnn_relu}


def _unsupported(kind, layer, sequences, mask, training):
    """Why PyTorch's operator for layers of a kind cannot run this call, or None."""
    cell = layer.cell
    if why := not_floating(sequences):
        return why
    if type(cell) is not _CELLS[kind]:
        return f"a cell of class {type(cell).__name__}"
    if sequences.dim() != 3 or not sequences.numel():
        return f"sequences of shape {tuple(sequences.shape)}"
    if getattr(layer, "use_cudnn", "auto") is False:
        return "use_cudnn=False"
    if training and (cell.recurrent_dropout or cell.dropout and getattr(cell, "implementation", 2) != 2):
        return "recurrent_dropout" if cell.recurrent_dropout else "dropout with implementation=1"
    if not getattr(cell, "reset_after", True):
        return "reset_after=False"
    if cell.activation not in (_RNN if kind is SimpleRNN else (activations.tanh,)):
        return f"activation {activations.serialize(cell.activation)}"
    if getattr(cell, "recurrent_activation", activations.sigmoid) is not activations.sigmoid:
        return f"recurrent_activation {activations.serialize(cell.recurrent_activation)}"
    return _unsupported_mask(kind, layer, _one(mask))


def _unsupported_mask(kind, layer, mask):
    if mask is None:
        return None
    if mask.ndim != 2 or layer.unroll or getattr(layer, "use_cudnn", "auto") is True:
        return "a mask with use_cudnn=True, unroll=True, or of other than two dimensions"
    return "a mask, and the cell state is wanted" if kind is LSTM and (layer.return_state or layer.stateful) else None


def _one(nested):
    """Keras gives a mask and a state alone or in a list."""
    return nested[0] if tree.is_nested(nested) else nested


def _layers(kind):
    def unsupported(layer, sequences, initial_state, mask, training=False):
        return _unsupported(kind, layer, sequences, mask, training)
    return replaces(f"{kind.__name__}.inner_loop", unsupported)


@_layers(LSTM)
def lstm(layer, sequences, initial_state, mask, training=False):
    """``torch.lstm``, whose gates have Keras' order."""
    def network(x, states):
        y, h, c = torch.lstm(x, states, _weights(layer, x), *_options(layer))
        return y, [h, c]
    return _run(layer, network, sequences, initial_state, mask, training)


@_layers(GRU)
def gru(layer, sequences, initial_state, mask, training=False):
    """``torch.gru``."""
    def network(x, states):
        y, h = torch.gru(x, *states, [_reset_first(w) for w in _weights(layer, x)], *_options(layer))
        return y, [h]
    return _run(layer, network, sequences, initial_state, mask, training)


@_layers(SimpleRNN)
def simple_rnn(layer, sequences, initial_state, mask, training=False):
    """``torch.rnn_tanh`` or ``rnn_relu``."""
    def network(x, states):
        y, h = _RNN[layer.cell.activation](x, *states, _weights(layer, x), *_options(layer))
        return y, [h]
    return _run(layer, network, sequences, initial_state, mask, training)


def _weights(layer, x):
    """Matrices and biases of PyTorch's operators, of inputs and of states; one bias is of inputs."""
    cell = layer.cell
    # cuDNN takes no views; elsewhere they would be copied too, into one buffer.
    weights = [value(w, x.dtype).T.contiguous() for w in (cell.kernel, cell.recurrent_kernel)]
    if cell.bias is not None:
        bias = value(cell.bias, x.dtype)
        weights += bias if bias.dim() == 2 else [bias, torch.zeros_like(bias)]
    return weights


def _reset_first(weight):
    """Keras has a GRU's gates in the order update, reset, new; PyTorch has reset first."""
    update, reset, new = weight.chunk(3)
    return torch.cat([reset, update, new])


def _options(layer):
    # Without a gradient to come cuDNN keeps nothing for one.
    return layer.cell.bias is not None, 1, 0.0, torch.is_grad_enabled(), False, True


def _run(layer, network, sequences, initial_state, mask, training):
    """(last output, outputs, states), as Keras' loop over the steps."""
    x, mask = value(sequences, layer.cell.compute_dtype), _one(mask)
    if training and layer.cell.dropout:
        x = x * layer.cell.get_dropout_mask(x[:, 0]).unsqueeze(1)  # the same for all steps
    states = [value(state, x.dtype) for state in tree.flatten(initial_state)]
    if layer.stateful:  # these are the layer's variables, which are written before the gradient is computed
        states = [state.clone() for state in states]
    if layer.go_backwards:
        x, mask = x.flip(1), None if mask is None else mask.flip(1)
    if mask is None:
        y, states = network(x, [state.unsqueeze(0) for state in states])
        states = [state.squeeze(0) for state in states]
    else:
        y, states = _masked(network, x, states, value(mask, "bool"), layer)
    last = y[:, -1]
    return last, y if layer.return_sequences else last.unsqueeze(1), states


def _masked(network, x, states, mask, layer):
    """(outputs, all or the last, and states). Steps whose mask is False keep the states, and repeat the output before them or are 0. The
    other steps of each sequence are moved to its beginning, run, and moved back: no lengths have to be known on the host."""
    order = mask.logical_not().sort(dim=1, stable=True).indices
    y, _ = network(x.take_along_dim(order.unsqueeze(2), 1), [state.unsqueeze(0) for state in states])
    mask, steps = mask.unsqueeze(2), mask.cumsum(1).unsqueeze(2)  # how many have run
    if not layer.return_sequences:
        mask, steps = mask[:, -1:], steps[:, -1:]
    y = y.take_along_dim((steps - 1).clamp(min=0), 1)
    final = torch.where(steps[:, -1] > 0, y[:, -1], states[0])
    # An LSTM's cell state is not known: nobody wants it.
    return torch.where(mask if layer.zero_output_for_mask else steps > 0, y, 0), [final, *states[1:]]
